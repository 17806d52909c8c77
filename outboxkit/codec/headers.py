"""Headers: those of outboxkit, and the ones that AMQP can carry. Pure."""

from collections.abc import Mapping
from operator import attrgetter
from struct import Struct
from typing import Any

import msgspec

from outboxkit.message import DEFAULTS, Message, is_version

OWN = "outboxkit-"
"""The beginning of the name of every header of outboxkit's own; no user's header has it."""
TYPE, KEY, TOPIC, VERSION = f"{OWN}type", f"{OWN}key", f"{OWN}topic", f"{OWN}version"
CORRELATION, CAUSATION, CREATED = f"{OWN}correlation-id", f"{OWN}causation-id", f"{OWN}created-at"
"""Headers for what AMQP, or HTTP, has no place of its own for."""
FIELD_HEADERS = {"key": KEY, "causation_id": CAUSATION, "version": VERSION}
"""The headers of the fields of a message for which neither AMQP nor HTTP has a place."""
VERSION_DIGITS = 10
"""The most digits that a version has."""
ATTEMPT, FIRST_FAILED, HANDLERS = f"{OWN}attempt", f"{OWN}first-failed-at", f"{OWN}handlers"
ACCEPTED, ABSENT, REPLAYED = f"{OWN}accepted-at", f"{OWN}absent", f"{OWN}replayed"
"""Headers about a delivery, which `brokers/reserved.py` reads and writes."""
EXTRA_ROUTES = ("CC", "BCC")
"""Headers by which a publisher sends to further queues (RabbitMQ's "sender-selected distribution"). It has happened by
the time a message is copied or replayed, and would happen again."""
NAME_LIMIT = 128
"""Bytes of a header's name, which may have 128 characters (AMQP 0-9-1, section 4.2.5.5): drivers cut off the rest."""
LIMIT = 120_000
"""Bytes of all headers: with the other properties they must fit into one frame, which RabbitMQ limits to 131 072."""
MAX_DEPTH = 32
"""Levels of tables and lists inside each other; more could not be handled without reaching Python's limit."""
INT64 = range(-(2**63), 2**63)
_FLOAT = Struct(">f")


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
        if total <= LIMIT:
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
        case float() if depth < MAX_DEPTH and not _fits_32_bits(value):  # inside others no more of it is written
            return repr(value)
        case int() if value not in INT64:
            return str(value)
        case _:
            return value


def _fits_32_bits(value: float) -> bool:
    try:
        return bool(_FLOAT.unpack(_FLOAT.pack(value))[0] == value)
    except OverflowError:
        return False


def _is_name(name: str) -> bool:
    return 0 < len(name.encode()) <= NAME_LIMIT


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
