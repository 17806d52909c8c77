"""A message as a request: its headers, its idempotency key and its signature. Pure.

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
from outboxkit.brokers.reserved import OWN, addressed_to
from outboxkit.errors import ConfigurationError
from outboxkit.message import Message

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Bytes of a secret."""


def signing_key(secret: str) -> bytes:
    """The bytes of a secret that is written as `whsec_` and base64.

    Raises:
        ConfigurationError: it is none. The text does not show it.
    """
    accepted = f"{PREFIX} followed by the base64 of {SHORTEST} to {LONGEST} random bytes is accepted"
    if not secret.startswith(PREFIX):
        raise ConfigurationError(f"the secret of the HTTP destination has no {PREFIX} in front; {accepted}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"the secret of the HTTP destination is no base64; {accepted}") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ConfigurationError(f"the secret of the HTTP destination has {len(key)} bytes; {accepted}")
    return key


def signed(key: bytes, *, id: str, body: bytes, now: datetime) -> dict[str, str]:  # noqa: A002 - the standard's word
    """The three headers by which the receiver knows who sent this body, and when.

    Args:
        key: the secret's bytes.
        id: the same on every attempt. A full stop in it is sent as `%2E`: id, time and body are signed with full stops
            between them, and nobody may move one.
        body: what is sent.
        now: the time of this attempt.
    """
    unambiguous, seconds = id.replace(".", "%2E"), str(int(now.timestamp()))
    content = b".".join((unambiguous.encode(), seconds.encode(), body))
    digest = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {"webhook-id": unambiguous, "webhook-timestamp": seconds, "webhook-signature": f"v1,{digest}"}


KEY_LIMIT = 255
"""Characters of an idempotency key that receivers can be expected to take; outboxkit's own door takes no more."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A token (RFC 9110, section 5.6.2)."""
_KEPT = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What is not percent-encoded (CloudEvents 1.0.2, HTTP binding, section 3.1.3.2)."""

RESERVED = frozenset(
    (
        *("host", "authorization", "cookie", "cookie2", "set-cookie", "user-agent", "date", "age", "from", "origin"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "via", "range"),
        *("http2-settings", "max-forwards", "early-data", "forwarded", "referer", "priority", "close"),
        *("idempotency-key", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url", "x-real-ip"),
    )
)
"""Names that no message sets: they say where a request goes, who sends it, how it is framed, or what it means."""
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
    """The message cannot be written as a request, now or ever; the text says why."""


def headers_of(message: Message, *, source: str | None) -> dict[str, str]:
    """The headers that come from a message.

    Args:
        message: what is sent.
        source: the `source` of CloudEvents' attributes; None: they are not asked for.

    Raises:
        Unsendable: its content type or encoding is no header's value.
    """
    headers = {
        "content-type": _field("content type", message.content_type),
        "idempotency-key": f'"{_escaped(key_of(message))}"',
        "outboxkit-type": encoded(message.type),
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
    headers |= {name: encoded(value) for name, value in optional.items() if value is not None}
    if source is not None:
        headers |= _cloud_event(message, source)
    return headers | users_own(message.headers)


def key_of(message: Message) -> str:
    """The message's id as an idempotency key: other ids, other keys, on every attempt.

    Visible ASCII but `%` is kept; every other character is percent-encoded as UTF-8, spaces too, since receivers refuse
    them. A result over 255 characters is replaced by a UUID that is derived from the id.
    """
    key = quote(message.id, safe=_KEPT + '"')
    return key if len(key) <= KEY_LIMIT else ids.derive("idempotency-key", message.id)


def encoded(text: str) -> str:
    """Any text as a header's value: percent-encoded outside visible ASCII, and `"` and `%` as well.

    The rule of the HTTP binding of CloudEvents 1.0.2, section 3.1.3.2.
    """
    return quote(text, safe=_KEPT)


def users_own(given: Mapping[str, object]) -> dict[str, str]:
    """The user's own headers that a request may carry. Names of no token, reserved ones and None are left out.

    A value that is not printable ASCII, or begins or ends with a space, is percent-encoded.
    """
    headers: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if value is None or not _NAME.fullmatch(name) or _is_reserved(lowered):
            continue
        headers.setdefault(lowered, _as_text(value))
    return headers


def refusal(message: Message) -> str | None:
    """Why a message is not for an HTTP destination at all; None: it is."""
    queue = addressed_to(message.headers)
    return None if queue is None else f"it is for the queue {queue!r}, and an HTTP destination has no queues"


def _is_reserved(name: str) -> bool:
    alike = name.replace("_", "-")  # CGI and WSGI give an application both under one name
    return alike in RESERVED or alike.startswith(RESERVED_PREFIXES)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if not text or _is_plain(text) else encoded(text)


def _is_plain(value: str) -> bool:
    """Whether it is a field's value without doubt: visible ASCII, with spaces in between (RFC 9110, section 5.5)."""
    return value != "" and value.isascii() and value.isprintable() and value[0] != " " and value[-1] != " "


def _field(what: str, value: str) -> str:
    if not _is_plain(value):
        raise Unsendable(f"its {what} {value!r} cannot be a header: printable ASCII without spaces around it can")
    return value


def _escaped(key: str) -> str:
    """Inside the quotes of a structured field's string (RFC 9651, section 4.1.6)."""
    return key.replace("\\", "\\\\").replace('"', '\\"')


def _cloud_event(message: Message, source: str) -> dict[str, str]:
    """The attributes of CloudEvents 1.0 in binary mode; `datacontenttype` is the content type itself."""
    attributes = {"specversion": "1.0", "id": message.id, "type": message.type, "source": source}
    if (time := _time(message.created_at)) is not None:
        attributes["time"] = time
    return {f"ce-{name}": encoded(value) for name, value in attributes.items()}


def _time(moment: datetime | None) -> str | None:
    """RFC 3339, in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
