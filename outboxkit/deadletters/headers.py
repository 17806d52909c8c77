"""Headers of a dead letter of the inbox, as its message carries them when it goes back to its queue. Pure.

They came from any client and were kept as JSON; what goes into the outbox must be what the relay can publish.
"""

from collections.abc import Mapping
from datetime import datetime
from struct import Struct
from typing import Any

import msgspec
from sqlalchemy import Row

from outboxkit import codec
from outboxkit.brokers import marks
from outboxkit.brokers.marks import Marks
from outboxkit.codec import HEADER_NAME_LIMIT, HEADERS_LIMIT, RESERVED_HEADERS

DEEPEST = 32
"""Tables and lists inside each other; what is deeper becomes text."""
ROUTING = ("CC", "BCC")
"""With these RabbitMQ sends copies to other queues (its "sender-selected distribution")."""

_INT64 = range(-(2**63), 2**63)
_FLOAT = Struct(">f")


def of_replay(letter: Row[Any], *, accepted_at: datetime | None) -> bytes:
    """The message's own headers, and those that send it to its queue and to the handler that gave it up.

    Raises:
        ValueError: what is stored cannot be read.
    """
    handlers = () if letter.handler is None else (letter.handler,)
    extra = Marks(handlers=handlers, accepted_at=accepted_at).headers() | {marks.QUEUE: letter.queue}
    try:
        return msgspec.json.encode(carried(codec.decode_headers(letter.headers)) | extra)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def carried(found: Mapping[str, object]) -> dict[str, object]:
    """Those of any client's headers that AMQP carries, each as exactly as it can.

    Left out: names over 128 bytes, reserved ones, and the largest where all together would not fit into one frame.
    """
    kept = {
        name: _value(value, DEEPEST)
        for name, value in found.items()
        if _is_name(name) and not name.startswith(RESERVED_HEADERS) and name not in ROUTING
    }
    sizes = {name: _size_of_field(name, value) for name, value in kept.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= HEADERS_LIMIT:
            break
        total -= sizes[name]
        del kept[name]
    return kept


def _value(value: object, depth: int) -> object:
    match value:
        case dict() | list() if depth == 0:
            return msgspec.json.encode(value).decode()
        case dict():
            return {name: _value(inner, depth - 1) for name, inner in value.items() if _is_name(name)}
        case list():
            return [_value(inner, depth - 1) for inner in value]
        case float() if depth < DEEPEST and not _fits_32_bits(value):  # inside others no more of it is written
            return repr(value)
        case int() if value not in _INT64:
            return str(value)
        case _:
            return value


def _fits_32_bits(value: float) -> bool:
    try:
        return bool(_FLOAT.unpack(_FLOAT.pack(value))[0] == value)
    except OverflowError:
        return False


def _is_name(name: str) -> bool:
    return 0 < len(name.encode()) <= HEADER_NAME_LIMIT


def _size(value: object) -> int:
    """Bytes on the wire, at most: a type, and eight for a number or four for the length of what follows."""
    match value:
        case str():
            return 5 + len(value.encode())
        case dict():
            return 5 + sum(_size_of_field(name, inner) for name, inner in value.items())
        case list():
            return 5 + sum(map(_size, value))
        case _:
            return 9


def _size_of_field(name: str, value: object) -> int:
    return 1 + len(name.encode()) + _size(value)
