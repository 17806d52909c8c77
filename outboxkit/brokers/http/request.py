"""HTTP request of a message: its target, headers, idempotency key and signature. Pure.

The target is the destination's URL with its credentials. Signatures follow https://www.standardwebhooks.com (version
1.0.0, the symmetric scheme).
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

import httpx

from outboxkit import ids
from outboxkit.codec.envelopes.cloudevents import attributes_of, utc_text
from outboxkit.codec.headers import CORRELATION, CREATED, OWN, TOPIC, TYPE, field_headers
from outboxkit.errors import ConfigurationError
from outboxkit.message import Message
from outboxkit.runtime import urls


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """One URL and the credentials that are sent to it with every request.

    Attributes:
        url: without user and password.
        origin: scheme, host and port, which may be shown. Paths and queries of webhooks hold secrets.
        authorization: the value of the `Authorization` header.
        key: the bytes with which requests are signed.
    """

    url: httpx.URL = field(repr=False)
    origin: str
    authorization: str | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


def parse(url: str, *, authorization: str | None = None, secret: str | None = None) -> RequestTarget:
    """The target that these settings describe.

    Raises:
        ConfigurationError: one of them is invalid. The text shows no secret.
    """
    try:
        urls.check_http(url)
        if authorization is not None:
            urls.check_authorization(authorization)
        key = urls.signing_key(secret) if secret is not None else None
    except ValueError as error:
        raise ConfigurationError(f"the HTTP destination cannot be used: {error}") from None
    try:
        parsed = httpx.URL(url)
        parsed.raw_host.decode("ascii").encode("idna")  # as for the look-up of the host
    except (httpx.InvalidURL, ValueError):
        raise ConfigurationError("the URL of the HTTP destination has a host that cannot be looked up") from None
    if parsed.userinfo and authorization is not None:
        raise ConfigurationError(
            "the URL of the HTTP destination has a user and a password, and an Authorization is set too: set only one"
        )
    credentials = _basic(parsed) if parsed.userinfo else authorization
    bare = parsed.copy_with(userinfo=b"")
    return RequestTarget(
        url=bare,
        origin=f"{bare.scheme}://{bare.netloc.decode('ascii')}",
        authorization=credentials,
        key=key,
    )


def _basic(url: httpx.URL) -> str:
    """The credentials of Basic authorization (RFC 7617) for user and password of the URL."""
    pair = f"{url.username}:{url.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def signature_headers(key: bytes, *, id: str, body: bytes, now: datetime) -> dict[str, str]:  # noqa: A002 - the standard's word
    """The three headers that prove to the receiver by which sender and at what time this body was sent.

    Args:
        key: the secret's bytes.
        id: the same on every attempt. A full stop in it is sent as `%2E`, because full stops separate id, time and body
            in the signed text.
        body: the body of the request.
        now: the time of this attempt.
    """
    unambiguous, seconds = id.replace(".", "%2E"), str(int(now.timestamp()))
    content = b".".join((unambiguous.encode(), seconds.encode(), body))
    digest = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {"webhook-id": unambiguous, "webhook-timestamp": seconds, "webhook-signature": f"v1,{digest}"}


KEY_LIMIT = 255
"""Characters of an idempotency key that receivers, such as outboxkit itself, can be expected to accept."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A token (RFC 9110, section 5.6.2)."""
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that are not percent-encoded (CloudEvents 1.0.2, HTTP binding, section 3.1.3.2)."""

RESERVED = frozenset(
    (
        *("host", "authorization", "cookie", "cookie2", "set-cookie", "user-agent", "date", "age", "from", "origin"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "via", "range"),
        *("http2-settings", "max-forwards", "early-data", "forwarded", "referer", "priority", "close"),
        *("idempotency-key", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url", "x-real-ip"),
    )
)
"""Headers that no message may set: they are about the request's destination, sender, framing or meaning."""
RESERVED_PREFIXES = (
    *("content-", "accept", "proxy-", "if-", "sec-", "x-forwarded-", "x-original-", "x-http-method-"),
    *("access-control-", "ce-", "webhook-", OWN),
)


def headers_of(message: Message, *, source: str | None) -> dict[str, str]:
    """The headers that come from a message.

    Args:
        message: the message to send.
        source: the `source` among the attributes of CloudEvents; None: without these attributes.

    Raises:
        ValueError: its content type or encoding is not a valid header value.
    """
    key = key_of(message).replace("\\", "\\\\").replace('"', '\\"')  # in a string (RFC 9651, section 4.1.6)
    headers = {
        "content-type": _field("content type", message.content_type),
        "idempotency-key": f'"{key}"',
        TYPE: percent_encoded(message.type),
    }
    if message.content_encoding:
        headers["content-encoding"] = _field("content encoding", message.content_encoding)
    more = {TOPIC: message.topic, CORRELATION: message.correlation_id, CREATED: utc_text(message.created_at)}
    carried = [*field_headers(message), *more.items()]
    headers |= {name: percent_encoded(str(value)) for name, value in carried if value is not None}
    if source is not None:  # in binary mode; `datacontenttype` is the content type itself
        headers |= {f"ce-{name}": percent_encoded(value) for name, value in attributes_of(message, source).items()}
    return headers | users_headers(message.headers)


def key_of(message: Message) -> str:
    """The idempotency key that belongs to the message's id: the same on every attempt, and never that of another id.

    Visible ASCII except `%` is unchanged. Every other character is percent-encoded as UTF-8, also a space, since
    receivers refuse it. A key over 255 characters is replaced by a UUID that is derived from the id.
    """
    key = quote(message.id, safe=_SAFE + '"')
    return key if len(key) <= KEY_LIMIT else ids.derive("idempotency-key", message.id)


def percent_encoded(text: str) -> str:
    """The text as a header value: `"`, `%` and all characters outside visible ASCII are percent-encoded.

    This is the rule of the HTTP binding of CloudEvents 1.0.2, section 3.1.3.2.
    """
    return quote(text, safe=_SAFE)


def users_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """The user's own headers that a request may have, without None, reserved names and names that are not tokens.

    A value that is not printable ASCII, or begins or ends with a space, is percent-encoded.
    """
    allowed: dict[str, str] = {}
    for name, value in headers.items():
        lowered = name.lower()
        if value is None or not _NAME.fullmatch(name) or _is_reserved(lowered):
            continue
        allowed.setdefault(lowered, _as_text(value))
    return allowed


def refusal_of(message: Message) -> str | None:
    """The reason why no HTTP destination can take this message; None if one can."""
    queue = message.queue
    return None if queue is None else f"it is for the queue {queue!r}, and an HTTP destination has no queues"


def _is_reserved(name: str) -> bool:
    dashed = name.replace("_", "-")  # CGI and WSGI do not tell them apart
    return dashed in RESERVED or dashed.startswith(RESERVED_PREFIXES)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if not text or _is_plain(text) else percent_encoded(text)


def _is_plain(value: str) -> bool:
    """Whether every receiver accepts it as a field value: visible ASCII, spaces in between (RFC 9110, section 5.5)."""
    return value != "" and value.isascii() and value.isprintable() and value[0] != " " and value[-1] != " "


def _field(name: str, value: str) -> str:
    if not _is_plain(value):
        raise ValueError(f"its {name} {value!r} cannot be a header: printable ASCII without spaces around it can")
    return value
