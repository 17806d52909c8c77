"""Headers: those of outboxkit about a message and about a delivery, and the ones that AMQP can carry. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from outboxkit.message import DEFAULTS, LAST_MOMENT, Message, is_storable_name, is_version

OWN = "outboxkit-"
"""The beginning of the name of every header of outboxkit's own; no user's header has it."""
TYPE, KEY, TOPIC, VERSION = f"{OWN}type", f"{OWN}key", f"{OWN}topic", f"{OWN}version"
CORRELATION, CAUSATION, CREATED = f"{OWN}correlation-id", f"{OWN}causation-id", f"{OWN}created-at"
"""Headers for what AMQP, or HTTP, has no place of its own for."""
BUCKET = f"{OWN}bucket"
"""The header with the bucket of the key, by which an exchange finds the key's shard: a text, since clients disagree
about the types of numbers."""
ALIASES = f"{OWN}aliases"
"""The header of a row, and of no message on the wire: earlier names of its event. A queue that is bound for one of them
gets the message, too."""
FIELD_HEADERS = {"key": KEY, "causation_id": CAUSATION, "version": VERSION}
"""The headers of the fields of a message for which neither AMQP nor HTTP has a place."""
VERSION_DIGITS = 10
"""The most digits that a version has."""
ATTEMPT, FIRST_FAILED, HANDLERS = f"{OWN}attempt", f"{OWN}first-failed-at", f"{OWN}handlers"
ACCEPTED, ABSENT, REPLAYED = f"{OWN}accepted-at", f"{OWN}absent", f"{OWN}replayed"
"""Headers about a delivery."""
HIDDEN_ROUTES = "BCC"
"""The header with further routing keys that the broker takes away: no queue sees it, and none gets two copies."""
EXTRA_ROUTES = ("CC", HIDDEN_ROUTES)
"""Headers by which a publisher sends to further queues (RabbitMQ's "sender-selected distribution"). It has happened by
the time a message is copied or replayed, and would happen again."""
HEADER_NAME_LIMIT = 128
"""Bytes of a header's name, which may have 128 characters (AMQP 0-9-1, section 4.2.5.5): drivers cut off the rest."""
HEADERS_LIMIT = 120_000
"""Bytes of all headers: with the other properties they must fit into one frame, which RabbitMQ limits to 131 072."""
MAX_DEPTH = 32
"""Levels of tables and lists inside each other; more could not be handled without reaching Python's limit."""
INT64 = range(-(2**63), 2**63)
MOST_ATTEMPTS = 1_000_000
"""The most that is read from a header: the number must fit into a column, with those that are still to come."""
MOST_HANDLERS = 1_000
"""The most handler names that are read. No consumer has so many handlers of one type."""

_NAMES = frozenset((ATTEMPT, FIRST_FAILED, HANDLERS, ACCEPTED, ABSENT, REPLAYED))
_ABSENT = ("message_id", "type")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


_field_values = attrgetter(*FIELD_HEADERS)
_FIELD_DEFAULTS = tuple(DEFAULTS[name] for name in FIELD_HEADERS)
_HEADERS_OF_FIELDS = tuple(FIELD_HEADERS.values())


def field_headers(message: Message) -> list[tuple[str, Any]]:
    """The headers of a message's fields, without those whose field has its default."""
    values = _field_values(message)
    if values == _FIELD_DEFAULTS:
        return []
    return [
        (header, value)
        for header, value, default in zip(_HEADERS_OF_FIELDS, values, _FIELD_DEFAULTS)  # noqa: B905 - as fast as it can
        if value != default
    ]


def read_fields(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that these headers hold. A value of another kind is None, which no version may be."""
    return {
        name: _version(headers[header]) if header is VERSION else _text_or_none(headers[header])
        for name, header in FIELD_HEADERS.items()
        if header in headers
    }


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _version(value: object) -> int | None:
    """The version of an event; some clients send numbers as text. None if it cannot be one."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= VERSION_DIGITS else value
    return number if is_version(number) else None  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class DeliveryHeaders:
    """The reserved headers of one delivery.

    Attributes:
        attempt: 1 for the first delivery, and one more after each retry.
        first_failed_at: when its first attempt failed.
        handlers: the names of the handlers to run; if empty, all of them.
        accepted_at: when an operator accepted it although it is stale.
        absent: on a replay of a dead letter that was not a message, the properties that its publisher did not send:
            `message_id`, `type` or both. They hold stand-ins, because a replay goes through the outbox.
        replayed: whether an operator had it delivered again.
    """

    attempt: int = 1
    first_failed_at: datetime | None = None
    handlers: tuple[str, ...] = ()
    accepted_at: datetime | None = None
    absent: tuple[str, ...] = ()
    replayed: bool = False

    def next_attempt(self, *, now: datetime, handlers: tuple[str, ...] = ()) -> "DeliveryHeaders":
        """The headers of the next attempt, for these handlers; if none are given, for the same ones."""
        return replace(
            self,
            attempt=self.attempt + 1,
            first_failed_at=self.first_failed_at or now,
            handlers=handlers or self.handlers,
        )

    def headers(self) -> dict[str, Any]:
        """The headers to write; an attribute with its default value has none."""
        headers: dict[str, Any] = {}
        if self.attempt > 1:
            headers[ATTEMPT] = self.attempt
        if self.first_failed_at is not None:
            headers[FIRST_FAILED] = _milliseconds(self.first_failed_at)
        if self.handlers:
            headers[HANDLERS] = list(self.handlers)
        if self.accepted_at is not None:
            headers[ACCEPTED] = _milliseconds(self.accepted_at)
        if self.absent:
            headers[ABSENT] = list(self.absent)
        if self.replayed:
            headers[REPLAYED] = True
        return headers


FRESH = DeliveryHeaders()


def read_delivery_headers(headers: Mapping[str, Any]) -> DeliveryHeaders:
    """The delivery headers among these headers. An invalid value, from a foreign client, is ignored."""
    if _NAMES.isdisjoint(headers):
        return FRESH
    return DeliveryHeaders(
        attempt=_attempt(headers.get(ATTEMPT)),
        first_failed_at=_moment(headers.get(FIRST_FAILED)),
        handlers=_names(headers.get(HANDLERS)),
        accepted_at=_moment(headers.get(ACCEPTED)),
        absent=tuple(name for name in _ABSENT if name in _names(headers.get(ABSENT))),
        replayed=headers.get(REPLAYED) is True,
    )


def without_own(headers: Mapping[str, Any]) -> dict[str, Any]:
    """These headers without those of outboxkit."""
    return {name: value for name, value in headers.items() if not name.startswith(OWN)}


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _attempt(value: object) -> int:
    return min(max(value, 1), MOST_ATTEMPTS) if type(value) is int else 1


def _names(value: object) -> tuple[str, ...]:
    """The values that can be the name of a handler, each once."""
    if not isinstance(value, list):
        return ()
    names = dict.fromkeys(name for name in value if isinstance(name, str) and is_storable_name(name))
    return tuple(names)[:MOST_HANDLERS]


def _moment(value: object) -> datetime | None:
    if type(value) is not int:
        return None
    try:
        moment = _EPOCH + value * _MILLISECOND
    except OverflowError:
        return None
    return moment if _EPOCH <= moment <= LAST_MOMENT else None


def encode_foreign_headers(headers: Mapping[str, object]) -> bytes:
    """Headers of any client as JSON, to be read by people: values that JSON does not know become text."""
    try:
        return msgspec.json.encode(dict(headers), enc_hook=repr)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode({_legible(name): _legible(value) for name, value in headers.items()})


def _legible(value: object) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
        return text.encode(errors="backslashreplace").decode()
    except RecursionError:
        return "nested too deeply to be shown"


def carried(headers: Mapping[str, object]) -> dict[str, object]:
    """Those of any client's headers that AMQP carries, each as exactly as it can.

    Left out: names over 128 bytes, reserved ones, and the largest if all together would not fit into one frame.
    """
    fitting = {
        name: _value(value, MAX_DEPTH)
        for name, value in headers.items()
        if _is_name(name) and not name.startswith(OWN) and name not in EXTRA_ROUTES
    }
    sizes = {name: _size_of_field(name, value) for name, value in fitting.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= HEADERS_LIMIT:
            break
        total -= sizes[name]
        del fitting[name]
    return fitting


def _value(value: object, depth: int) -> object:
    match value:
        case dict() | list() if depth == 0:
            return msgspec.json.encode(value).decode()
        case dict():
            return {name: _value(inner, depth - 1) for name, inner in value.items() if _is_name(name)}
        case list():
            return [_value(inner, depth - 1) for inner in value]
        case float() if depth < MAX_DEPTH:  # inside others 32 bits of it would be written
            return repr(value)
        case int() if value not in INT64:
            return str(value)
        case _:
            return value


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
