"""What of a message is where in AMQP's properties and headers, and how it is read again. Pure.

`frames` writes them, `properties` decodes them, `rewrite` copies them.
"""

from datetime import UTC, datetime
from typing import Any

from outboxkit.brokers import Malformed
from outboxkit.brokers.marks import OWN
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
NEVER_TOO_LONG = 63
"""Characters that are no more bytes in UTF-8 than AMQP carries."""
_RESERVED = (OWN, *BROKERS_OWN)
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
    key, causation = _string(headers.get(KEY)), _string(headers.get(CAUSATION))
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


def _first_of_death(deaths: object, routing_key: str) -> str:
    """The routing key that the broker noted when it first moved the message to another queue."""
    try:
        found = deaths[-1]["routing-keys"][0]  # type: ignore[index]
    except (TypeError, LookupError):
        return routing_key
    return found if isinstance(found, str) else routing_key


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


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
