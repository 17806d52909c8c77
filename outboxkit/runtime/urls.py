"""URLs of databases and brokers, credentials of HTTP destinations, and addresses to listen on.

Which of them are accepted, and which parts may be printed. What is not accepted is a `ValueError`, whose text says what
is, and has no part that may be secret.
"""

import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

DATABASES = "postgresql+psycopg://user:password@host/name or sqlite:///path"
ESCAPED = "an @ in a user or a password is written %40, a / %2F, a ? %3F and a # %23"
_NOTE = "database "  # the beginning of a note by which an error names its database
_OF_DATABASES, _HTTP = ("postgresql", "postgres", "sqlite"), ("http", "https")
_VISIBLE, _ANOTHER_URL = re.compile(r"[!-~]+"), re.compile(r",\s*\w+://")
_OF_ASYNCPG = {"ssl": "sslmode=require", "timeout": "connect_timeout=10", "server_settings": "options=-cname%3Dvalue"}
"""Query options of asyncpg, with psycopg's equivalents."""


def check_database(text: str) -> None:
    """Validate the URL of a database."""
    if is_ambiguous(text):
        raise ValueError(f"{DATABASES} is accepted; {ESCAPED}")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        reason = "" if "://" in text else "; it has no scheme://" if text.strip() else "; it is empty"
        raise ValueError(f"{DATABASES} is accepted{reason}") from None
    backend = url.get_backend_name()
    if backend == "sqlite" and (url.host or url.username or url.port):
        raise ValueError("sqlite:///path is accepted, with three slashes, or four if the path begins at the root")
    if backend == "postgres":
        raise ValueError("postgresql+psycopg://… is accepted; write that instead of postgres://, and keep the rest")
    if backend not in ("postgresql", "sqlite"):
        raise ValueError(f"{DATABASES} is accepted; the scheme is {backend[:20]!r}")
    if backend == "postgresql" and url.query:
        _check_query(url)


def _check_query(url: URL) -> None:
    """Refuse query options that libpq does not know: psycopg gets them, whatever driver the URL names."""
    from psycopg import pq  # noqa: PLC0415 - only if there is a query

    options = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    for name in url.query:
        if name not in options:
            option = repr(name) if re.fullmatch("[a-z_]{1,40}", name) else "one option"
            instead = f": write {_OF_ASYNCPG[name]}" if name in _OF_ASYNCPG else ""
            raise ValueError(
                "options of libpq are accepted behind the ?, such as sslmode=require or options=-csearch_path%3Dshop. "
                f"psycopg, which is used whatever driver the URL names, does not know {option}{instead}"
            )


def check_broker(text: str) -> None:
    """Validate the URL of a broker, several with commas between them, or the URL of an HTTP destination."""
    each = [url.strip() for url in text.split(",")]
    scheme, separator, _ = each[0].partition("://")
    if separator and scheme in _HTTP:
        check_http(text)
        return
    if not separator or scheme not in ("amqp", "amqps", "memory"):
        raise ValueError(
            "amqp://user:password@host:5672/vhost, amqps://…, memory:// or https://host/path is accepted; "
            + (
                f"the scheme is {scheme[:20]!r}"
                if separator and scheme.isalnum()
                else "it does not begin with one of these"
                if text.strip()
                else "it is empty"
            )
        )
    if len(each) > 1 and not all(url.startswith(("amqp://", "amqps://")) for url in each):
        raise ValueError(
            "a list of amqp:// or amqps:// URLs with commas between them is accepted; "
            "one of these is not such a URL. A comma in a password is written %2C"
        )
    if any(is_ambiguous(url) for url in each):
        raise ValueError(f"amqp://user:password@host:5672/vhost is accepted; {ESCAPED}")
    for url in each:
        check_broker_options(url)


FILES = ("cafile", "certfile", "keyfile")
"""Options of a broker's URL that name a file."""
_OF_TLS = (*FILES, "capath", "cadata", "no_verify_ssl")
_OF_BROKERS = ("heartbeat", "auth", *_OF_TLS)


def check_broker_options(url: str) -> None:
    """Validate what stands behind the ? of a broker's URL: the client library ignores what it does not know."""
    parts = urlsplit(url)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OF_BROKERS:
            option = repr(name) if re.fullmatch("[a-z_]{1,40}", name) else "one option"
            raise ValueError(f"{', '.join(_OF_BROKERS)} are accepted behind the ?, and not {option}")
        if name in _OF_TLS and parts.scheme != "amqps":
            raise ValueError(f"the option {name} behind the ? is for amqps://, and this is amqp://, without TLS")
        if name == "heartbeat" and not (value.isdecimal() and int(value) < 65535):
            raise ValueError(
                "the option heartbeat behind the ? has a wrong value; a whole number of seconds is accepted"
            )
        if not value:
            raise ValueError(f"the option {name} behind the ? has no value")


def check_management(url: str) -> None:
    """Validate the URL of RabbitMQ's management API."""
    check_http(url, accepted="http://user:password@host:15672 or https://… is accepted")


ONE_HTTP_URL = "https://host/path or http://… is accepted, one URL with a host and without a fragment"


def check_http(url: str, *, accepted: str = ONE_HTTP_URL) -> None:
    """Validate the URL of an HTTP destination."""
    if not _VISIBLE.fullmatch(url) or _ANOTHER_URL.search(url):
        raise ValueError(f"{accepted}; this is not such a URL")
    if is_ambiguous(url):
        raise ValueError(f"{accepted}; {ESCAPED}")
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in _HTTP and bool(parts.hostname)
        is_usable = is_http and (parts.port is None or parts.port > 0) and "#" not in url
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError(accepted)


_HEADER = re.compile(r"[!-~]+(?: [!-~]+)*")
_SIGNING = "whsec_"


def check_authorization(value: str) -> None:
    """Validate the `Authorization` header for an HTTP destination."""
    if _HEADER.fullmatch(value) is None:
        raise ValueError("the value of a header is accepted, such as Bearer …: one line of printable ASCII")


def signing_key(secret: str) -> bytes:
    """The bytes of a secret with which requests are signed, from `whsec_` and their base64."""
    try:
        key = b64decode(secret.removeprefix(_SIGNING), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith(_SIGNING) or not 24 <= len(key) <= 64:
        raise ValueError(f"{_SIGNING} and 24 to 64 bytes in base64 is accepted, as Standard Webhooks has it")
    return key


_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):)?(?P<port>[0-9]{1,5})")
LOOPBACK = "127.0.0.1"
"""The host of an address without one: nobody outside this machine reaches it."""


class ListenAddress(NamedTuple):
    """An address to listen on; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return _address(self.host, self.port)


def parse_address(value: object) -> object:
    """A `ListenAddress` from `PORT` or `HOST:PORT`; one is returned as it is. Without a host it is `LOOPBACK`."""
    if isinstance(value, ListenAddress):
        return value
    text = str(value).strip()
    if text.startswith("tcp://"):
        raise ValueError(
            "PORT or HOST:PORT is accepted. Kubernetes sets this variable for a Service named outboxkit-admin: give "
            "the Service another name, or the pod enableServiceLinks: false"
        )
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("a port from 0 to 65535 is accepted, or HOST:PORT such as 0.0.0.0:9464 or [::]:9464")
    return ListenAddress((match["host"] or LOOPBACK).strip("[]"), int(match["port"]))


def shown(url: str | URL) -> str:
    """Scheme, host and port, and the database, vhost or file. Of several URLs with commas between them, each.

    User, password, query and the path of an HTTP URL are left out. Of an ambiguous URL only the scheme is printed,
    because a part of the password may be mistaken for the host.
    """
    if isinstance(url, URL):
        return _database(url)
    return ", ".join(_one(each.strip()) for each in (url.split(",") if url.startswith("amqp") else [url]))


@contextmanager
def naming(url: str | URL) -> Iterator[None]:
    """An error inside names this database: it gets the note `shown(url)`, which `compose.explain` prints."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{_NOTE}{shown(url)}")
        raise


def named_by(error: Exception) -> str:
    """The databases that `naming` noted with an error, each with a colon behind it."""
    notes = getattr(error, "__notes__", ())
    return "".join(f"{note.removeprefix(_NOTE)}: " for note in notes if note.startswith(_NOTE))


def file_of(url: str) -> str | None:
    """The file of a database, by its plain path; None if it is on a server, in memory, or named by a URI."""
    parsed = make_url(url)
    name = parsed.database if parsed.get_backend_name() == "sqlite" else None
    return name if name and not name.startswith((":", "file:")) else None


def is_ambiguous(url: str) -> bool:
    """Whether a part of the user or the password may be taken for the host, because an `@` in it is not escaped."""
    scheme, _, rest = url.strip().partition("://")
    authority = rest.translate({ord("?"): "/", ord("#"): "/"}).partition("/")[0]
    if _is_database(scheme):
        return _is_ambiguous_database(url)
    behind = "" if scheme.lower() in _HTTP else rest[len(authority) :]  # in a path it is an ordinary character
    return authority.count("@") > 1 or "@" in behind


def _is_ambiguous_database(url: str) -> bool:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return url.count("@") > 1
    if parsed.username is not None and "?" in url.partition("@")[0]:
        return True  # an `@` behind the ? has made a user of what stands before it
    names = [pair.partition("=")[0] for pair in url.partition("?")[2].split("&")]
    parts = (parsed.host, *names) if parsed.get_backend_name() == "sqlite" else (parsed.host, parsed.database, *names)
    return any("@" in part for part in parts if part)


def _is_database(scheme: str) -> bool:
    return scheme.partition("+")[0].lower() in _OF_DATABASES


def _one(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme.replace("+", "").isalnum():
        return "a URL without a scheme"
    try:
        if is_ambiguous(url):
            return f"{scheme}://…"
        return _database(make_url(url)) if _is_database(scheme) else _server(url)
    except (ArgumentError, ValueError):
        return f"{scheme}://…"


def _server(url: str) -> str:
    parts = urlsplit(url)
    if not parts.hostname:
        return f"{parts.scheme}://"
    path = "" if parts.scheme in _HTTP else parts.path
    return f"{parts.scheme}://{_address(parts.hostname, parts.port)}{path}"


def _database(url: URL) -> str:
    scheme = url.get_backend_name()
    if scheme == "sqlite":
        return f"sqlite:///{url.database}" if url.database else "sqlite:// in memory"
    hosts = url.query.get("host", ())
    names = (hosts,) if isinstance(hosts, str) else hosts
    address = _address(url.host, url.port) if url.host else ",".join(names)
    return f"{scheme}://{address}/{url.database or ''}"


def _address(host: str, port: int | None) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"
