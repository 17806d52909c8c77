"""The decision whether a dead letter may be replayed, and the headers of one that goes back to its queue. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from struct import Struct
from typing import Any

import msgspec
from sqlalchemy import Row

from outboxkit import codec, window
from outboxkit.brokers import reserved
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.codec import HEADER_NAME_LIMIT, HEADERS_LIMIT, RESERVED_HEADERS
from outboxkit.errors import EncodeError
from outboxkit.message import NAME_LIMIT, Message

DEEPEST = 32
"""Tables and lists inside each other; what is deeper becomes text."""
ROUTING = ("CC", "BCC")
"""With these RabbitMQ sends copies to other queues (its "sender-selected distribution")."""

_INT64 = range(-(2**63), 2**63)
_FLOAT = Struct(">f")


def of_replay(letter: Row[Any], *, accepted_at: datetime | None) -> bytes:
    """The message's own headers, and those that send it to its queue and to the handler that gave it up.

    Raises:
        ValueError: the stored headers cannot be read.
    """
    handlers = () if letter.handler is None else (letter.handler,)
    extra = DeliveryHeaders(handlers=handlers, accepted_at=accepted_at).headers() | {reserved.QUEUE: letter.queue}
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


_ENVELOPE = ("key", "topic", "correlation_id", "causation_id", "content_type", "content_encoding")


class Refusal(StrEnum):
    """The reason for which a replay leaves a dead letter as it is."""

    TAKEN = "taken"
    NO_PLACE = "no place"
    MALFORMED = "malformed"
    NO_QUEUE = "no queue"
    STALE = "stale"

    @property
    def plain(self) -> str:
        """The reason in a sentence, with its cure."""
        return _PLAIN[self]


_PLAIN = {
    Refusal.TAKEN: "its place in the outbox is taken; the same message may wait there already: compare it with "
    "`outboxkit dead show`, and discard the duplicate",
    Refusal.NO_PLACE: "no place in the outbox is known for it; it can be discarded",
    Refusal.MALFORMED: "it has no id or no type, or a value that no message can hold. Its producer must send it "
    "again, and it can be discarded",
    Refusal.NO_QUEUE: "no queue is known to send it back to; it can be discarded",
    Refusal.STALE: "older than the inbox is sure to remember: it may have been handled, and a replay may repeat its "
    "effects. Find out; then add --accept-stale, or discard it",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which dead letters of the inbox may go back to their queue.

    Attributes:
        retention: the inbox's retention in the consumers' settings.
        skew: the clock skew in the consumers' settings.
        accept_stale: also replay stale ones, which get the time of the replay.
    """

    retention: timedelta = timedelta(days=14)
    skew: timedelta = window.CLOCK_SKEW
    accept_stale: bool = False

    def refusal(self, letter: Row[Any], now: datetime) -> Refusal | None:
        """The reason for which this dead letter cannot be replayed, or None. Its place in the outbox is not checked."""
        if letter.side == "outbox":
            return Refusal.NO_PLACE if letter.position is None else None
        if not _is_message(letter):
            return Refusal.MALFORMED
        if not letter.queue or len(letter.queue.encode()) > NAME_LIMIT:
            return Refusal.NO_QUEUE
        return Refusal.STALE if self.is_stale(letter, now) and not self.accept_stale else None

    def is_stale(self, letter: Row[Any], now: datetime) -> bool:
        """Whether a consumer would find it stale. A dead letter with the reason `stale` always is."""
        made_at = window.message_time(letter.message_id or "", letter.created_at)
        return letter.reason == "stale" or window.is_too_old(made_at, now=now, retention=self.retention, skew=self.skew)


def _is_message(letter: Row[Any]) -> bool:
    """Whether it is the whole message. In a malformed one with an id and a type, some value was cut or left out."""
    if letter.reason == "malformed" or not letter.message_id or not letter.type:
        return False
    try:
        Message(letter.message_id, letter.type, b"", **{name: getattr(letter, name) for name in _ENVELOPE})
    except EncodeError:
        return False
    return True
