"""Target of an HTTP destination: its URL, its credentials, and the secrets among them. Pure."""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from outboxkit.brokers.http import call, request
from outboxkit.brokers.http.call import Redaction
from outboxkit.errors import ConfigurationError

ACCEPTED = "http://host/path or https://user:password@host/path is accepted"
_FIELD = re.compile(r"[!-~]+(?: +[!-~]+)*")


@dataclass(frozen=True, slots=True)
class Target:
    """One URL and the credentials that are sent to it with every request.

    Attributes:
        url: without user and password.
        origin: scheme, host and port, which may be shown. Paths and queries of webhooks hold secrets.
        authorization: the value of the `Authorization` header.
        key: the bytes with which requests are signed.
        hide: removes from a text the secrets: path and query, user and password, authorization, key.
    """

    url: httpx.URL = field(repr=False)
    origin: str
    authorization: str | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    hide: Redaction = field(default_factory=lambda: Redaction(()), repr=False, compare=False)


def parse(url: str, *, authorization: str | None = None, secret: str | None = None) -> Target:
    """The target that these settings describe.

    Raises:
        ConfigurationError: one of them is invalid. The text shows no secret.
    """
    try:
        parsed = httpx.URL(url)
        parsed.raw_host.decode("ascii").encode("idna")  # as for the look-up of the host
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise ConfigurationError(f"the URL of the HTTP destination is not a URL; {ACCEPTED}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(f"the URL of the HTTP destination has no host, or another scheme; {ACCEPTED}")
    if parsed.port is not None and not 0 < parsed.port < 65_536:
        raise ConfigurationError("the URL of the HTTP destination has an invalid port: 1 to 65535 are accepted")
    if parsed.fragment:
        raise ConfigurationError("the URL of the HTTP destination has a fragment (#…), which is never sent to a server")
    if parsed.userinfo and authorization is not None:
        raise ConfigurationError(
            "the URL of the HTTP destination has a user and a password, and an Authorization is set too: set only one"
        )
    if authorization is not None and not _FIELD.fullmatch(authorization):
        raise ConfigurationError(
            "the Authorization of the HTTP destination is empty, or is not one line of printable ASCII"
        )
    credentials = _basic(parsed) if parsed.userinfo else authorization
    bare = parsed.copy_with(userinfo=b"")
    return Target(
        url=bare,
        origin=f"{bare.scheme}://{bare.netloc.decode('ascii')}",
        authorization=credentials,
        key=request.signing_key(secret) if secret is not None else None,
        hide=Redaction(_secrets(parsed, credentials, secret)),
    )


def _basic(url: httpx.URL) -> str:
    """The credentials of Basic authorization (RFC 7617) for user and password of the URL."""
    pair = f"{url.username}:{url.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _secrets(url: httpx.URL, authorization: str | None, secret: str | None) -> Iterator[str]:
    """The secret texts, without the scheme of an authorization and the prefix of a secret, which are public."""
    path, _, query = url.raw_path.decode("ascii", "replace").partition("?")
    yield from call.parts_of(path, query)
    user, _, password = url.userinfo.decode("ascii", "replace").partition(":")
    yield from (user, password)
    if authorization is not None:
        scheme, _, credentials = authorization.partition(" ")
        yield credentials.strip() or scheme
    if secret is not None:
        yield secret.removeprefix(request.PREFIX)
