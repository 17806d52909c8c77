"""An arrived message: its properties (AMQP 0-9-1, sections 2.3.5.2 and 4.2.5), and the message that they make. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct, error
from typing import Any

from pamqp import decode

from outboxkit.brokers import Malformed
from outboxkit.brokers.reserved import OWN
from outboxkit.codec import CONTENT_TYPE
from outboxkit.errors import EncodeError
from outboxkit.message import Message, unchecked

_LONG, _TIME, _DOUBLE = Struct(">I"), Struct(">Q"), Struct(">d")
_MORE_FLAGS = 1
_TEXT, _NOTHING = ord("S"), ord("V")
MILLISECONDS_FROM = 0xFFFFFFFF
"""Some clients write milliseconds where AMQP has seconds: a timestamp above this, the year 2106, is one of theirs."""

DEEPEST = 32
"""How many levels of tables and lists a header may have; more could not be handled without reaching Python's limit."""


@dataclass(slots=True)
class Properties:
    """AMQP's fourteen, under the client library's names for them; None where one was not sent."""

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
    """What could not be decoded, and why. The raw bytes are still what was sent."""


def read(flags: int, written: bytes) -> Properties:
    """The properties behind these flags. It raises nothing: see `unreadable`."""
    found, position = Properties(), 0
    if flags & _MORE_FLAGS:
        found.unreadable = "it has properties that AMQP 0-9-1 does not know"
        return found
    for flag, name, read_one in _FIELDS:
        if not flags & flag:
            continue
        try:
            value, position = read_one(written, position)
        except _UNREADABLE as cause:
            position = _behind(read_one, written, position)
            reason = f"its {name} cannot be read: {' '.join(str(cause).split()) or type(cause).__name__}"
            found.unreadable = found.unreadable or reason
            continue
        setattr(found, name, value)
    return found


def parts(flags: int, written: bytes) -> dict[str, bytes]:
    """Each property that is there, as it is on the wire; they were read without a fault before."""
    found, position = {}, 0
    for flag, name, read_one in _FIELDS:
        if flags & flag:
            end = _behind(read_one, written, position)
            found[name], position = written[position:end], end
    return found


def joined(written: dict[str, bytes]) -> tuple[int, bytes]:
    """What `parts` gave, as flags and the bytes behind them."""
    present = [(flag, written[name]) for flag, name, _ in _FIELDS if name in written]
    return sum(flag for flag, _ in present), b"".join(part for _, part in present)


def fields(table: bytes) -> Iterator[tuple[str, bytes]]:
    """The fields of a table that was read without a fault before: the name, and all of it as it is on the wire."""
    position = 4
    while position < len(table):
        value = position + 1 + table[position]
        size = _SIZES.get(table[value])
        end = value + 1 + (4 + int.from_bytes(table[value + 1 : value + 5]) if size is None else size)
        yield table[position + 1 : value].decode(), table[position:end]
        position = end


def _short(written: bytes, position: int) -> tuple[str, int]:
    start = position + 1
    end = start + written[position]
    if end > len(written):
        raise ValueError("it ends before its end")
    return written[start:end].decode(), end


def _octet(written: bytes, position: int) -> tuple[int, int]:
    return written[position], position + 1


def _time(written: bytes, position: int) -> tuple[datetime, int]:
    (seconds,) = _TIME.unpack_from(written, position)
    exact = seconds / 1000 if seconds > MILLISECONDS_FROM else seconds
    return datetime.fromtimestamp(exact, UTC), position + 8


def _table(written: bytes, position: int) -> tuple[dict[str, Any], int]:
    (size,) = _LONG.unpack_from(written, position)
    position += 4
    end = position + size
    if end > len(written):
        raise ValueError("it ends before its end")
    found: dict[str, Any] = {}
    while position < end:
        start = position + 1
        position = start + written[position]
        name, kind = written[start:position].decode(), written[position]
        if kind == _TEXT:
            start = position + 5
            position = start + _LONG.unpack_from(written, position + 1)[0]
            found[name] = _text(written[start:position])
        elif kind == _NOTHING:
            found[name], position = None, position + 1
        else:
            used, found[name] = decode.embedded_value(written[position:end])
            position += used
            _check_depth(found[name])
    if position != end:
        raise ValueError("a value ends behind its end")
    return found, end


def _text(written: bytes) -> str | bytes:
    try:
        return written.decode()
    except UnicodeDecodeError:
        return written


def _check_depth(value: object, levels: int = DEEPEST) -> None:
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, levels - 1)


_SIZES = dict(zip(b"tbBsuIilLfdDTV\0", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0, 0), strict=True))
"""Bytes of a value by its type, if all of that type have as many; the others say how many follow."""
_Read = Callable[[bytes, int], tuple[Any, int]]
_UNREADABLE = (
    ValueError,
    OverflowError,
    OSError,
    IndexError,
    TypeError,
    ArithmeticError,
    RecursionError,
    error,
)
_FIELDS: tuple[tuple[int, str, _Read], ...] = (
    (0x8000, "content_type", _short),
    (0x4000, "content_encoding", _short),
    (0x2000, "headers", _table),
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


def _behind(read_one: _Read, written: bytes, position: int) -> int:
    """Where the next property begins; at the end where even that cannot be told."""
    if position >= len(written):
        return position
    if read_one is _time:
        return position + 8
    if read_one is _octet:
        return position + 1
    if read_one is _table:
        return position + 4 + int.from_bytes(written[position : position + 4])
    return position + 1 + written[position]


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
            return unchecked(*fields)
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
