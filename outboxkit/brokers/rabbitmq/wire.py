"""What of a message is where in AMQP's properties and headers, and how it is read again. Pure.

`frames` writes them, `properties` decodes them.
"""

import struct
from datetime import UTC, datetime
from typing import Any

from pamqp import decode, encode
from pamqp.commands import Basic

from outboxkit.brokers import Malformed
from outboxkit.brokers.marks import OWN, Marks
from outboxkit.brokers.rabbitmq.properties import Properties
from outboxkit.codec import CONTENT_TYPE
from outboxkit.errors import EncodeError
from outboxkit.message import Message, trusted

PERSISTENT = 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY, CAUSATION, TOPIC = "outboxkit-key", "outboxkit-causation-id", "outboxkit-topic"
COUNT = "x-delivery-count"
BROKERS_OWN = ("x-death", "x-first-death-", "x-last-death-", COUNT, "x-acquired-count")
"""Headers that RabbitMQ itself adds on the way: they say something about the delivery, not about the message."""
ROUTES_MORE = ("CC", "BCC")
"""Headers by which a publisher sends to further queues: it has happened, and would again at each copy."""
NEVER_TOO_LONG = 63
"""Characters that are no more bytes in UTF-8 than AMQP carries."""
_RESERVED = (OWN, *BROKERS_OWN)
_COPIED = (
    *("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "message_id", "timestamp"),
    *("message_type", "app_id"),
)
"""Not the expiry, which was meant for the first queue: it would cut the wait in another one short, and the message be
dropped. Nor the user id, which the broker compares with ours, nor the cluster id, which AMQP 0-9-1 no longer has."""
_NO_HEADERS: dict[str, Any] = {}


def to_message(properties: Properties, body: bytes, topic: str) -> Message | Malformed:
    """The message of a delivery from any client; what lacks an id or a type is not guessed at."""
    if properties.unreadable is not None:
        return _malformed(properties.unreadable, properties, body)
    id_, type_ = properties.message_id, properties.message_type
    if not id_:
        return _malformed("the message has no message_id", properties, body)
    if not type_:
        return _malformed("the message has no type", properties, body)
    headers = properties.headers or _NO_HEADERS
    key, causation = _text(headers.get(KEY)), _text(headers.get(CAUSATION))
    texts = (key, topic, properties.correlation_id, causation, properties.content_encoding or None)
    kept = {name: value for name, value in headers.items() if not name.startswith(_RESERVED)}
    content_type = properties.content_type or CONTENT_TYPE
    fields = (*(id_, type_, body, texts[0], texts[1], kept), *texts[2:4], properties.timestamp, content_type, texts[4])
    try:
        # Everything but what came in a header is a short string: valid, and no longer than allowed.
        if "\0" not in "".join((id_, type_, content_type, *filter(None, texts))) and _is_short(key, topic, causation):
            return trusted(*fields)
        return Message(*fields)
    except EncodeError as error:
        return _malformed(str(error), properties, body)


def topic_of(properties: Properties, routing_key: str, *, dropped: bool = False) -> str:
    """The routing key that the message was first published with, also where it was sent to its queue directly since."""
    headers = properties.headers or _NO_HEADERS
    found = headers.get(TOPIC)
    if isinstance(found, str):
        return found
    return _first_of_death(headers.get("x-death"), routing_key) if dropped else routing_key


def returned(properties: Properties, *, redelivered: bool) -> int:
    """How often it came back: as a quorum queue counts, and at least once where it was delivered before."""
    count = (properties.headers or _NO_HEADERS).get(COUNT)
    return max(count if type(count) is int else 0, int(redelivered))


def copy_of(properties: Properties, marks: Marks, topic: str) -> Basic.Properties:
    """The properties of a copy that is put into a queue directly: all kept, with these marks and the first topic."""
    kept = {name: value for name in _COPIED if (value := getattr(properties, name)) is not None}
    headers: dict[str, Any] = {
        name: _writable(value)
        for name, value in (properties.headers or _NO_HEADERS).items()
        if name in (KEY, CAUSATION) or not (name.startswith(_RESERVED) or name in ROUTES_MORE)
    }
    headers |= {TOPIC: topic, **marks.headers()}
    return Basic.Properties(**kept, headers=headers, delivery_mode=PERSISTENT)


def _first_of_death(deaths: object, routing_key: str) -> str:
    """The routing key that the broker noted when it first moved the message to another queue."""
    try:
        found = deaths[-1]["routing-keys"][0]  # type: ignore[index]
    except (TypeError, LookupError):
        return routing_key
    return found if isinstance(found, str) else routing_key


def _writable(value: Any) -> Any:
    """A header value that can be written again without a loss: what cannot becomes text.

    pamqp writes every float with 32 bits, and not all that it reads.
    """
    if isinstance(value, dict):
        return {name: _writable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_writable(inner) for inner in value]
    if isinstance(value, bytes):
        return bytearray(value)  # the one form in which pamqp writes bytes that are no text
    try:
        _, again = decode.embedded_value(encode.encode_table_value(value))
    except (TypeError, ValueError, OverflowError, struct.error):
        return str(value)
    return value if again == value else str(value)


def _malformed(reason: str, properties: Properties, body: bytes) -> Malformed:
    return Malformed(
        reason=reason,
        payload=body,
        message_id=properties.message_id or None,
        type=properties.message_type or None,
        headers={
            name: value
            for name, value in (properties.headers or _NO_HEADERS).items()
            if not name.startswith(OWN) or name in (KEY, CAUSATION)
        },
        content_type=properties.content_type,
        correlation_id=properties.correlation_id,
    )


def _is_short(*texts: str | None) -> bool:
    return all(text is None or len(text) <= NEVER_TOO_LONG for text in texts)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
