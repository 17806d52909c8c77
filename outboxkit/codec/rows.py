"""A message as a row: the columns that hold it, in one order for all that write and read them. Pure.

A message on the wire is in `brokers/rabbitmq/encode.py` and `decode.py`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from outboxkit.codec.headers import ALIASES, HEADER_NAME_LIMIT, HEADERS_LIMIT, INT64, OWN
from outboxkit.errors import EncodeError
from outboxkit.message import DEFAULTS, FIELDS, TEXT_FIELDS, Message, is_storable_name, unchecked

COLUMNS = ("message_id", *FIELDS[1:])
"""The columns of a message, in every table that holds messages: `message_id`, and the names of its other fields."""
TEXTS = ("message_id", *TEXT_FIELDS[1:])
"""Those of them that are texts of at most 255 bytes."""
NUMBERS = tuple(name for name, default in DEFAULTS.items() if isinstance(default, int))
"""Those of them that are whole numbers."""
_PAYLOAD, _HEADERS = COLUMNS.index("payload"), COLUMNS.index("headers")
_NUMBERS = [(COLUMNS.index(name), DEFAULTS[name], f"its {name} is not a number") for name in NUMBERS]
_NO_HEADERS: dict[str, object] = {}
_STORED_HEADERS = msgspec.json.Decoder(dict[str, object])
_values = attrgetter(*FIELDS)


class Sending(NamedTuple):
    """The columns of a new row beside its message: when it is sent, to which destination and how."""

    due_at: datetime | None
    expires_at: datetime | None
    discard_unroutable: bool
    dedup: bool
    destination: str
    reply: str | None


def to_row(message: Message, aliases: Sequence[str] = ()) -> dict[str, Any]:
    """The message's columns by name.

    If its event has aliases, and neither topic nor queue is set, the header `outboxkit-aliases` is added. So queues
    that are bound for an earlier name get it, too.

    Raises:
        EncodeError: its headers cannot be stored and sent.
    """
    row = dict(zip(COLUMNS, _values(message), strict=True))
    row["headers"] = encode_headers(message.headers)
    if aliases and message.topic is None and message.queue is None:
        row["headers"] = msgspec.json.encode({ALIASES: aliases, **message.headers})
    return row


def aliases_of(message: Message) -> Sequence[str]:
    """The aliases of a message that was read from a row: further routing keys."""
    aliases = message.headers.get(ALIASES)
    if message.queue is not None or not isinstance(aliases, list):
        return ()
    return [each for each in aliases if isinstance(each, str) and is_storable_name(each)]


def from_row(values: Sequence[Any]) -> Message:
    """The message in the values of `COLUMNS`.

    Raises:
        EncodeError, msgspec.DecodeError: the row was not written by outboxkit: they are not a message's.
    """
    fields = list(values)
    fields[_PAYLOAD], fields[_HEADERS] = bytes(fields[_PAYLOAD]), decode_headers(fields[_HEADERS])
    return Message(*fields)


def from_claimed(values: list[Any]) -> tuple[Message, str | None]:
    """The message in the values of `COLUMNS`, and the reason if it cannot be published as it is.

    For the relay, which reads thousands of rows a second: it repeats no check that was made when the row was written.
    The list is used up.
    """
    unreadable = None
    if values[_HEADERS] == b"{}":
        values[_HEADERS] = _NO_HEADERS
    else:
        try:
            values[_HEADERS] = decode_headers(values[_HEADERS])
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            values[_HEADERS], unreadable = _NO_HEADERS, f"its headers cannot be read: {type(error).__name__}"
    if type(values[_PAYLOAD]) is not bytes:  # SQLite stores whatever it is given
        values[_PAYLOAD], unreadable = b"", "its payload is not bytes"
    for place, default, reason in _NUMBERS:
        if type(values[place]) is not int:
            values[place], unreadable = default, reason
    return unchecked(values), unreadable


def encode_headers(headers: Mapping[str, object]) -> bytes:
    """Headers as JSON for the outbox row.

    Raises:
        EncodeError: a name is reserved, empty or over 128 bytes, or all are over 120 000 bytes. Or a value is neither
            str, int, bool nor None.
    """
    for name, value in headers.items():
        if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= HEADER_NAME_LIMIT:
            raise EncodeError(f"header name {name!r} is not accepted: a str of 1 to {HEADER_NAME_LIMIT} bytes is")
        if name.startswith(OWN):
            raise EncodeError(f"header {name!r} is reserved: names that start with {OWN!r} are outboxkit's own")
        if name in ("CC", "BCC"):
            raise EncodeError(f"header {name!r} is reserved: RabbitMQ takes it for a list of further routing keys")
        if not isinstance(value, str | int | bool | None):  # no float: on the wire it would be rounded to 32 bits
            raise EncodeError(
                f"header {name!r} is {value!r} ({type(value).__name__}); str, int, bool or None is accepted"
            )
        if isinstance(value, int) and value not in INT64:
            raise EncodeError(f"header {name!r} is {value}, which does not fit AMQP's 64 bits; send it as a str")
    try:
        encoded = msgspec.json.encode(dict(headers))
    except (ValueError, TypeError) as error:
        raise EncodeError(f"the headers cannot be encoded: {error}") from error
    if len(encoded) > HEADERS_LIMIT:
        raise EncodeError(f"the headers are {len(encoded)} bytes long; at most {HEADERS_LIMIT} fit into one AMQP frame")
    return encoded


def decode_headers(stored: bytes) -> dict[str, object]:
    """Headers as they were given to `encode_headers`."""
    return _STORED_HEADERS.decode(stored)
