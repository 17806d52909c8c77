"""What of a message is where in AMQP's properties and headers, and how it is read again. Pure.

`frames` writes them.
"""

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiormq.abc import DeliveredMessage
from pamqp import decode, encode
from pamqp.commands import Basic

from outboxkit.brokers import Malformed
from outboxkit.codec import CONTENT_TYPE
from outboxkit.errors import EncodeError
from outboxkit.message import Message

PERSISTENT = 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY, CAUSATION = "outboxkit-key", "outboxkit-causation-id"
ATTEMPT, TOPIC = "outboxkit-attempt", "outboxkit-topic"
OWN = "outboxkit-"
BROKERS_OWN = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""Headers that RabbitMQ itself adds on the way: they say something about the delivery, not about the message."""


def to_message(arrived: DeliveredMessage) -> Message | Malformed:
    """The message in a delivery, from any client; what lacks an id or a type is not guessed at."""
    properties, body = arrived.header.properties, arrived.body
    headers: Mapping[str, Any] = properties.headers or {}
    if not properties.message_id:
        return _malformed("the message has no message_id", properties, body)
    if not properties.message_type:
        return _malformed("the message has no type", properties, body)
    try:
        return Message(
            id=properties.message_id,
            type=properties.message_type,
            payload=body,
            key=_text(headers.get(KEY)),
            topic=_text(headers.get(TOPIC, arrived.routing_key)),
            headers={name: value for name, value in headers.items() if not name.startswith((OWN, *BROKERS_OWN))},
            correlation_id=properties.correlation_id,
            causation_id=_text(headers.get(CAUSATION)),
            created_at=properties.timestamp if isinstance(properties.timestamp, datetime) else None,
            content_type=properties.content_type or CONTENT_TYPE,
            content_encoding=properties.content_encoding or None,
        )
    except EncodeError as error:
        return _malformed(str(error), properties, body)


def attempt_of(arrived: DeliveredMessage) -> int:
    """Which attempt this delivery is, counted from 1; whatever a foreign client wrote there, it is at least 1."""
    found = (arrived.header.properties.headers or {}).get(ATTEMPT)
    return max(found, 1) if isinstance(found, int) else 1


def as_next_attempt(arrived: DeliveredMessage) -> Basic.Properties:
    """The delivery's own properties, all kept, marked as one attempt more."""
    found = arrived.header.properties
    kept = {name: getattr(found, name) for name in Basic.Properties.attributes()}
    headers: dict[str, Any] = {
        name: _writable(value) for name, value in (found.headers or {}).items() if not name.startswith(BROKERS_OWN)
    }
    headers.setdefault(TOPIC, arrived.routing_key)
    headers[ATTEMPT] = attempt_of(arrived) + 1
    # An expiry was meant for the first queue; on the way back it would cut the wait short and drop the message.
    return Basic.Properties(
        **(kept | {"headers": headers, "delivery_mode": PERSISTENT, "expiration": None, "user_id": None})
    )


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


def _malformed(reason: str, properties: Basic.Properties, body: bytes) -> Malformed:
    return Malformed(
        reason=reason,
        payload=body,
        message_id=properties.message_id or None,
        type=properties.message_type or None,
        headers=properties.headers or {},
        content_type=properties.content_type,
        correlation_id=properties.correlation_id,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
