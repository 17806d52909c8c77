"""Decoder of a delivery's properties (AMQP 0-9-1, sections 2.3.5.2 and 4.2.5), and the message they describe. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct, error
from typing import Any

from pamqp import decode

from outboxkit.codec.envelopes.envelope import Envelope, Malformed
from outboxkit.codec.headers import FIELD_HEADERS, MAX_DEPTH, OWN, TOPIC, VERSION, read_fields
from outboxkit.codec.payloads import JSON_TYPE
from outboxkit.errors import EncodeError
from outboxkit.errors.failures import printable
from outboxkit.message import DEFAULTS, TEXT_FIELDS, Message, unchecked

_TIME = Struct(">Q")
_MORE_FLAGS = 1
_TEXT, _BYTES, _TABLE, _ARRAY, _NOTHING = b"SxFAV"
MAX_SECONDS = 0xFFFFFFFF
"""The largest timestamp, in the year 2106, that counts as seconds. Some clients send milliseconds instead."""


@dataclass(slots=True)
class Properties:
    """The fourteen properties of AMQP, named as in the client library. None if a property was not sent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: datetime | None = None
    message_type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None
    unreadable: str | None = None
    """The first error if a property could not be decoded. Such a property is None."""


def read_properties(flags: int, data: bytes) -> Properties:
    """The properties that the flags announce, decoded from `data`. It raises nothing; see `unreadable`."""
    properties, offset = Properties(), 0
    if flags & _MORE_FLAGS:
        properties.unreadable = "it has properties that AMQP 0-9-1 does not know"
        return properties
    for flag, name, read_one in _FIELDS:
        if not flags & flag:
            continue
        try:
            value, offset = read_one(data, offset)
        except _DECODE_ERRORS as cause:
            offset = _end_of(read_one, data, offset)
            reason = f"its {name} cannot be read: {' '.join(str(cause).split()) or type(cause).__name__}"
            properties.unreadable = properties.unreadable or reason
            continue
        setattr(properties, name, value)
    return properties


def split(flags: int, data: bytes) -> dict[str, bytes]:
    """The encoded bytes of each property that can be read, by its name."""
    properties, parts, offset = read_properties(flags, data), dict[str, bytes](), 0
    for flag, name, read_one in _FIELDS:
        if flags & flag:
            end = _end_of(read_one, data, offset)
            if getattr(properties, name) is not None:
                parts[name] = data[offset:end]
            offset = end
    return parts


def join(parts: dict[str, bytes]) -> tuple[int, bytes]:
    """The flags and the bytes of properties that `split` has separated."""
    present = [(flag, parts[name]) for flag, name, _ in _FIELDS if name in parts]
    return sum(flag for flag, _ in present), b"".join(part for _, part in present)


def fields(table: bytes) -> Iterator[tuple[str, bytes]]:
    """The name and the encoded bytes of each field of a table that `read_properties` has decoded without an error."""
    offset = 4
    while offset < len(table):
        value = offset + 1 + table[offset]
        size = _SIZES.get(table[value])
        end = value + 1 + (4 + int.from_bytes(table[value + 1 : value + 5]) if size is None else size)
        yield table[offset + 1 : value].decode(), table[offset:end]
        offset = end


def _short(data: bytes, offset: int) -> tuple[str, int]:
    start = offset + 1
    end = start + data[offset]
    if end > len(data):
        raise ValueError("it is cut off")
    return data[start:end].decode(), end


def _octet(data: bytes, offset: int) -> tuple[int, int]:
    return data[offset], offset + 1


def _time(data: bytes, offset: int) -> tuple[datetime, int]:
    (timestamp,) = _TIME.unpack_from(data, offset)
    seconds = timestamp / 1000 if timestamp > MAX_SECONDS else timestamp
    return datetime.fromtimestamp(seconds, UTC), offset + 8


def _headers(data: bytes, offset: int) -> tuple[dict[str, Any], int]:
    return _table(data, offset, len(data), MAX_DEPTH)


def _table(data: bytes, offset: int, limit: int, levels: int) -> tuple[dict[str, Any], int]:
    end = _end_of_sized(data, offset, limit)
    offset += 4
    table: dict[str, Any] = {}
    while offset < end:
        start = offset + 1
        offset = start + data[offset]
        name = data[start:offset].decode()
        if offset + 5 <= end and data[offset] == _TEXT:  # as `_value` does it, in less time
            start = offset + 5
            offset = start + int.from_bytes(data[offset + 1 : start])
            table[name] = _text(data[start:offset])
        else:
            table[name], offset = _value(data, offset, end, levels)
    if offset != end:
        raise ValueError("it is cut off")
    return table, end


def _array(data: bytes, offset: int, limit: int, levels: int) -> tuple[list[Any], int]:
    end = _end_of_sized(data, offset, limit)
    offset += 4
    array: list[Any] = []
    while offset < end:
        value, offset = _value(data, offset, end, levels)
        array.append(value)
    return array, end


def _value(data: bytes, offset: int, limit: int, levels: int) -> tuple[Any, int]:
    """The value that begins with its type. The client library's decoder copies, for each value, all that follows it."""
    kind = data[offset] if offset < limit else None
    offset += 1
    if kind == _TEXT:
        end = _end_of_sized(data, offset, limit)
        return _text(data[offset + 4 : end]), end
    if kind == _BYTES:
        end = _end_of_sized(data, offset, limit)
        return bytearray(data[offset + 4 : end]), end
    if kind in (_TABLE, _ARRAY):
        if not levels:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        return (_table if kind == _TABLE else _array)(data, offset, limit, levels - 1)
    if kind == _NOTHING:
        return None, offset
    end = limit + 1 if kind is None else offset + _SIZES.get(kind, 0)
    if end > limit:
        raise ValueError("it is cut off")
    return decode.embedded_value(data[offset - 1 : end])[1], end


def _end_of_sized(data: bytes, offset: int, limit: int) -> int:
    """The end of what begins with its size in four bytes, which may not be behind `limit`."""
    end = offset + 4 + int.from_bytes(data[offset : offset + 4])
    if end > limit:
        raise ValueError("it is cut off")
    return end


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


_SIZES = dict(zip(b"tbBsuIilLfdDTV\0", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0, 0), strict=True))
"""Bytes of a value by its type, for types of a fixed size. Values of the other types begin with their size."""
_Read = Callable[[bytes, int], tuple[Any, int]]
_DECODE_ERRORS = (ValueError, OSError, IndexError, TypeError, ArithmeticError, error)
_FIELDS: tuple[tuple[int, str, _Read], ...] = (
    (0x8000, "content_type", _short),
    (0x4000, "content_encoding", _short),
    (0x2000, "headers", _headers),
    (0x1000, "delivery_mode", _octet),
    (0x0800, "priority", _octet),
    (0x0400, "correlation_id", _short),
    (0x0200, "reply_to", _short),
    (0x0100, "expiration", _short),
    (0x0080, "message_id", _short),
    (0x0040, "timestamp", _time),
    (0x0020, "message_type", _short),
    (0x0010, "user_id", _short),
    (0x0008, "app_id", _short),
    (0x0004, "cluster_id", _short),
)


def _end_of(read_one: _Read, data: bytes, offset: int) -> int:
    """The offset after the property that begins here. It may be behind the end of the data."""
    if offset >= len(data):
        return offset
    if read_one is _time:
        return offset + 8
    if read_one is _octet:
        return offset + 1
    if read_one is _headers:
        return offset + 4 + int.from_bytes(data[offset : offset + 4])
    return offset + 1 + data[offset]


PERSISTENT = 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELIVERY_COUNT = "x-delivery-count"
BROKERS_OWN = ("x-death", "x-first-death-", "x-last-death-", DELIVERY_COUNT, "x-acquired-count")
"""Prefixes of the headers that RabbitMQ adds: they are about the delivery, not about the message."""
SAFE_LENGTH = 63
"""Characters that fit into the 255 bytes of a short string, whatever they are."""
NOT_THE_USERS = (OWN, *BROKERS_OWN)
"""Prefixes of the headers that are not the publisher's own."""
_NO_HEADERS: dict[str, Any] = {}


def to_message(properties: Properties, body: bytes, topic: str) -> Message | Malformed:
    """The message of a delivery from any client; `Malformed` if it has no id or no type, which are not guessed."""
    id_, type_, headers = properties.message_id, properties.message_type, properties.headers or _NO_HEADERS
    fields = read_fields(headers)
    if properties.unreadable is not None or not id_ or not type_ or fields.get("version", 1) is None:
        return _malformed(_why_malformed(properties, headers), properties, body, topic)
    fields |= {
        "id": id_,
        "type": type_,
        "payload": body,
        "topic": topic,
        "headers": {name: value for name, value in headers.items() if not name.startswith(NOT_THE_USERS)},
        "correlation_id": properties.correlation_id,
        "created_at": properties.timestamp,
        "content_type": properties.content_type or JSON_TYPE,
        "content_encoding": properties.content_encoding or None,
    }
    texts = [fields[name] for name in TEXT_FIELDS if fields.get(name)]
    try:
        if "\0" not in "".join(texts) and max(map(len, texts)) <= SAFE_LENGTH:
            return unchecked({**DEFAULTS, **fields}.values())
        return Message(**fields)
    except EncodeError as error:
        return _malformed(str(error), properties, body, topic)


def envelope_of(properties: Properties, body: bytes, topic: str) -> Envelope:
    """The delivery as its publisher sent it, without the headers of the broker and of outboxkit."""
    return _envelope(properties, body, topic, lambda name: not name.startswith(NOT_THE_USERS))


def _malformed(reason: str, properties: Properties, body: bytes, topic: str) -> Malformed:
    """The delivery for a dead letter, with the headers of the broker, and those of outboxkit about the message."""
    kept = FIELD_HEADERS.values()
    envelope = _envelope(properties, body, topic, lambda name: not name.startswith(OWN) or name in kept)
    return Malformed.of(envelope, reason)


def _envelope(properties: Properties, body: bytes, topic: str, is_kept: Callable[[str], bool]) -> Envelope:
    headers = properties.headers or _NO_HEADERS
    return Envelope(
        body=body,
        headers={name: value for name, value in headers.items() if is_kept(name)},
        routing_key=topic,
        message_id=properties.message_id or None,
        type=properties.message_type or None,
        content_type=properties.content_type or None,
        content_encoding=properties.content_encoding or None,
        correlation_id=properties.correlation_id or None,
        app_id=properties.app_id or None,
        timestamp=properties.timestamp,
    )


def topic_of(properties: Properties, routing_key: str, *, dropped: bool = False) -> str:
    """The routing key of the first publish, also if a copy was published to the queue directly since."""
    headers = properties.headers or _NO_HEADERS
    topic = headers.get(TOPIC)
    if isinstance(topic, str):
        return topic
    return _first_of_death(headers.get("x-death"), routing_key) if dropped else routing_key


def redeliveries(properties: Properties, *, redelivered: bool) -> int:
    """The number of redeliveries as a quorum queue counts them; at least 1 if the broker says `redelivered`."""
    count = (properties.headers or _NO_HEADERS).get(DELIVERY_COUNT)
    return max(count if type(count) is int else 0, int(redelivered))


def _first_of_death(deaths: object, routing_key: str) -> str:
    """The routing key of the oldest `x-death` entry: when the broker first dead-lettered the message."""
    try:
        first_routing_key = deaths[-1]["routing-keys"][0]  # type: ignore[index]
    except (TypeError, LookupError):
        return routing_key
    return first_routing_key if isinstance(first_routing_key, str) else routing_key


def _why_malformed(properties: Properties, headers: dict[str, Any]) -> str:
    if properties.unreadable is not None:
        return properties.unreadable
    if not properties.message_id:
        return "the message has no message_id"
    if not properties.message_type:
        return "the message has no type"
    return f"its header {VERSION} is {printable(repr(headers[VERSION]), 60)}; a whole number from 1 is accepted"
