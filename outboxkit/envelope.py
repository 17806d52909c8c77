"""The envelope in a row: the columns that hold a message, in one order for all that write and read them. Pure.

The envelope on the wire is in `brokers/rabbitmq/encode.py` and `decode.py`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from outboxkit.headers import decode_headers, encode_headers
from outboxkit.message import FIELDS, Message, unchecked

COLUMNS = ("message_id", *FIELDS[1:])
"""The columns of a message, in every table that holds messages: `message_id`, and the names of its other fields."""
TEXTS = tuple(name for name in COLUMNS if name not in ("payload", "headers", "created_at", "version"))
"""Those of them that are texts of at most 255 bytes."""
_PAYLOAD, _HEADERS, _VERSION = COLUMNS.index("payload"), COLUMNS.index("headers"), COLUMNS.index("version")
_NO_HEADERS: dict[str, object] = {}


class Sending(NamedTuple):
    """The columns of a new row beside its message: when it is sent, to which destination and how."""

    due_at: datetime | None
    expires_at: datetime | None
    discard_unroutable: bool
    dedup: bool
    destination: str
    reply: str | None


def to_row(message: Message) -> tuple[Any, ...]:
    """The values of `COLUMNS`.

    Raises:
        EncodeError: its headers cannot be stored and sent.
    """
    return (
        message.id,
        message.type,
        message.payload,
        message.key,
        message.topic,
        encode_headers(message.headers),
        message.correlation_id,
        message.causation_id,
        message.created_at,
        message.content_type,
        message.content_encoding,
        message.queue,
        message.version,
    )


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

    For the relay, which reads thousands of rows a second: nothing is looked at that was checked when it was written.
    The list is used up.
    """
    unreadable = None
    if values[_HEADERS] == b"{}":
        values[_HEADERS] = _NO_HEADERS
    else:
        try:
            values[_HEADERS] = decode_headers(values[_HEADERS])
        except Exception as error:  # noqa: BLE001 - whatever is there, it stops no other row
            values[_HEADERS], unreadable = _NO_HEADERS, f"its headers cannot be read: {type(error).__name__}"
    if type(values[_PAYLOAD]) is not bytes:  # SQLite stores whatever it is given
        values[_PAYLOAD], unreadable = b"", "its payload is not bytes"
    if type(values[_VERSION]) is not int:
        values[_VERSION], unreadable = 1, "its version is not a number"
    return unchecked(values), unreadable
