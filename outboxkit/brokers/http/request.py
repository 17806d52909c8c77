"""HTTP request of a message: its headers, its idempotency key and its signature. Pure.

Signatures follow https://www.standardwebhooks.com (version 1.0.0, the symmetric scheme).
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

from outboxkit import ids
from outboxkit.errors import ConfigurationError
from outboxkit.headers import OWN
from outboxkit.message import Message

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Limits of the bytes of a secret."""


def signing_key(secret: str) -> bytes:
    """The bytes of a secret that is given as `whsec_` and base64.

    Raises:
        ConfigurationError: it is not such a secret. The text does not show it.
    """
    accepted = f"{PREFIX} followed by the base64 of {SHORTEST} to {LONGEST} random bytes is accepted"
    if not secret.startswith(PREFIX):
        raise ConfigurationError(f"the secret of the HTTP destination does not begin with {PREFIX}; {accepted}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"the secret of the HTTP destination is not base64; {accepted}") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ConfigurationError(f"the secret of the HTTP destination has {len(key)} bytes; {accepted}")
    return key


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
    *(
        "content-",
        "accept",
        "proxy-",
        "if-",
        "sec-",
        "x-forwarded-",
        "x-original-",
        "x-http-method-",
        "access-control-",
    ),
    *("ce-", "webhook-", OWN),
)


class Unsendable(Exception):
    """A message cannot be written as a request, now or ever; the text says why."""


def headers_of(message: Message, *, source: str | None) -> dict[str, str]:
    """The headers that come from a message.

    Args:
        message: the message to send.
        source: the `source` among the attributes of CloudEvents; None: without these attributes.

    Raises:
        Unsendable: its content type or encoding is not a valid header value.
    """
    headers = {
        "content-type": _field("content type", message.content_type),
        "idempotency-key": f'"{_escaped(key_of(message))}"',
        "outboxkit-type": percent_encoded(message.type),
    }
    if message.content_encoding:
        headers["content-encoding"] = _field("content encoding", message.content_encoding)
    optional = {
        "outboxkit-key": message.key,
        "outboxkit-topic": message.topic,
        "outboxkit-correlation-id": message.correlation_id,
        "outboxkit-causation-id": message.causation_id,
        "outboxkit-created-at": _time(message.created_at),
    }
    headers |= {name: percent_encoded(value) for name, value in optional.items() if value is not None}
    if source is not None:
        headers |= _cloud_event(message, source)
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


def why_unsendable(message: Message) -> str | None:
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
        raise Unsendable(f"its {name} {value!r} cannot be a header: printable ASCII without spaces around it can")
    return value


def _escaped(key: str) -> str:
    """The key as it stands between the quotes of a structured field's string (RFC 9651, section 4.1.6)."""
    return key.replace("\\", "\\\\").replace('"', '\\"')


def _cloud_event(message: Message, source: str) -> dict[str, str]:
    """The attributes of CloudEvents 1.0 in binary mode; `datacontenttype` is the content type itself."""
    attributes = {"specversion": "1.0", "id": message.id, "type": message.type, "source": source}
    if (time := _time(message.created_at)) is not None:
        attributes["time"] = time
    return {f"ce-{name}": percent_encoded(value) for name, value in attributes.items()}


def _time(moment: datetime | None) -> str | None:
    """RFC 3339, in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
