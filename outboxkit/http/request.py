"""A request with an idempotency key: its body, its key and fingerprint, and the rules of its operation."""

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple, TypedDict
from urllib.parse import quote

from outboxkit import defaults
from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from outboxkit.http.answer import is_stored
from outboxkit.http.ledger import LENGTH, check_span
from outboxkit.telemetry import catalogue, metrics

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]

KEY_HEADER = "Idempotency-Key"
SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""Methods that only read (RFC 9110, section 9.2.1). Their requests need no key."""
MEBIBYTE = 1024 * 1024
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"(?:;[^,]*)?')
_ESCAPED = re.compile(r"\\(.)")
_VISIBLE = re.compile(r"[\x21-\x7e]*")


class IdempotencyOptions(TypedDict, total=False):
    """The attributes of `Rules`, for functions that pass them on."""

    required: bool
    retention: timedelta
    max_body: int
    max_response: int
    stored: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an operation for idempotency keys.

    Attributes:
        required: whether a request without a key is refused; otherwise it runs, and nothing is remembered.
        retention: for how long an answer is remembered.
        max_body: bytes of a request's body.
        max_response: bytes of an answer's body.
        stored: whether an answer with this status is remembered.

    Raises:
        ConfigurationError: a time is not a timedelta of a millisecond to a hundred years, or a limit is below one.
    """

    required: bool = True
    retention: timedelta = defaults.REQUEST_RETENTION
    max_body: int = MEBIBYTE
    max_response: int = MEBIBYTE
    stored: Callable[[int], bool] = is_stored

    def __post_init__(self) -> None:
        check_span("retention", self.retention)
        for name in ("max_body", "max_response"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; a number of bytes from 1 is accepted")


class RequestKey(NamedTuple):
    """The request as the ledger knows it."""

    scope: str
    key: str
    fingerprint: bytes


def request_key_of(scope: Scope, body: bytes, operation: str | None = None) -> RequestKey:
    """The ledger's key for an ASGI request.

    Args:
        scope: with the path as it was sent, if the server tells it.
        body: the bytes.
        operation: the path of the operation, in which a key stands for one request; None: the path that was sent.

    Raises:
        Problem: 400, the key is missing or not valid.
    """
    try:
        key = parse_key(header_lines(scope, "idempotency-key"))
    except problems.Problem as problem:
        raise refused(problem) from None
    method = scope["method"]
    path = (scope.get("raw_path") or quote(scope["path"], errors="surrogatepass").encode()).decode("latin-1")
    digest = fingerprint(
        method=method,
        path=path,
        query=scope.get("query_string", b"").decode("latin-1"),
        content_type=next(iter(header_lines(scope, "content-type")), None),
        body=body,
    )
    return RequestKey(_short(f"{method} {path if operation is None else operation}"), key, digest)


def parse_key(fields: Sequence[str]) -> str:
    """The key in the lines of the header Idempotency-Key.

    It is a string of structured fields, `"8e03978e"` (RFC 9651, section 3.3.3; parameters are not read), or the same
    key bare, `8e03978e`. A bare key has no quote, and no comma, which would be a sign of two joined lines.

    Raises:
        Problem: 400; there is no line or more than one, or it holds no key of 1 to 255 visible ASCII characters.
    """
    if not fields:
        raise problems.key_missing()
    if len(fields) > 1:
        raise problems.key_invalid("Idempotency-Key came more than once")
    text = fields[0].strip(" \t")
    if text.startswith('"'):
        match = _QUOTED.fullmatch(text)
        if match is None:
            raise problems.key_invalid("Idempotency-Key begins with a quote, but is not one string in quotes")
        key = _ESCAPED.sub(r"\1", match[1])
    else:
        key = text
        if "," in text or '"' in text:
            raise problems.key_invalid("Idempotency-Key has a comma or a quote without being a string in quotes")
    if not key:
        raise problems.key_invalid("Idempotency-Key is empty")
    if len(key) > LENGTH:
        raise problems.key_invalid(f"Idempotency-Key has {len(key)} characters")
    if not _VISIBLE.fullmatch(key):
        raise problems.key_invalid("Idempotency-Key has a blank, or another character that is not visible ASCII")
    return key


def fingerprint(*, method: str, path: str, query: str, content_type: str | None, body: bytes) -> bytes:
    """The SHA-256 digest of a request as it was sent, 32 bytes: a retry is the same request byte for byte.

    `query` is the text behind the question mark. The parameters of `content_type` do not count.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    digest = sha256()
    for part in (method, path, query, media_type, body):
        content = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        digest.update(len(content).to_bytes(8))  # so that nothing moves unnoticed from one part to the next
        digest.update(content)
    return digest.digest()


def header_lines(scope: Scope, name: str) -> list[str]:
    """Every line of a header of an ASGI request, by its name in lower case."""
    lower = name.encode()
    return [value.decode("latin-1") for field, value in scope["headers"] if field.lower() == lower]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The body of an ASGI request, or a refusal with 413; None: the client left before its end."""
    refuse_longer(next(iter(header_lines(scope, "content-length")), None), limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise refused(problems.body_too_large(limit))
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read before, and then the server's messages."""
    is_read = False

    async def again() -> AsgiMessage:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def refuse_longer(announced: str | None, limit: int) -> None:
    """Refuse with 413 a body of which Content-Length announces more bytes. What is not a number does not count."""
    digits = (announced or "").strip().lstrip("0")
    if digits.isascii() and digits.isdecimal() and (len(digits) > len(str(limit)) or int(digits) > limit):
        raise refused(problems.body_too_large(limit))


def refused(problem: problems.Problem) -> problems.Problem:
    """The same problem, the answer to a request that is refused for its key or its body; it is recorded."""
    metrics.measure(catalogue.HTTP_REQUESTS, 1, {"outcome": "refused"})
    return problem


def checked_principal(value: object) -> str:
    """The caller's id; what is not text, or is empty, is a mistake of the application."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(
            f"principal= gives {value!r}; the caller's id as text is accepted. For a caller that is not known, answer "
            "401: raise HTTPException(401) in FastAPI, abort(401) in Flask, outboxkit.http.problems.Problem in ASGI"
        )
    return value


def _short(scope: str) -> str:
    """The scope, or, if the ledger cannot keep it as it is, a readable part of it and its digest."""
    readable = scope.encode(errors="replace").decode().replace("\0", "?")
    if readable == scope and len(scope) <= LENGTH:
        return scope
    digest = sha256(scope.encode(errors="surrogatepass")).hexdigest()
    return f"{readable[: LENGTH - len(digest) - 1]}~{digest}"
