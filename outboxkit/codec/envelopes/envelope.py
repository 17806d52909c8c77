"""A delivery as its publisher sent it, `Envelope`, and as `Malformed` if it is not a message. Pure.

The bounds of foreign envelopes are here, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from outboxkit.codec.compression import INFLATED_LIMIT
from outboxkit.codec.headers import HEADERS_LIMIT
from outboxkit.codec.payloads import plain_payload
from outboxkit.errors import DecodeError, EncodeError
from outboxkit.errors.failures import first_line, printable, text_of
from outboxkit.message import Message, check_moment, is_storable_name

MOST_HEADERS = 100
"""The maximum number of headers or attributes that are taken from one envelope."""
LONGEST_ERROR = 500
LONGEST_TIME = 64
"""The maximum length of a text that is read as a time."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One delivery as its publisher sent it, for a reader: the properties of AMQP, the headers and the body.

    Attributes:
        headers: without those of the broker, and without outboxkit's own.
        routing_key: the one with which it was published.
        limit: the maximum bytes of the body once it is inflated.
    """

    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    routing_key: str = ""
    message_id: str | None = None
    type: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    app_id: str | None = None
    timestamp: datetime | None = None
    limit: int = INFLATED_LIMIT

    @property
    def media_type(self) -> str:
        """The content type in small letters, without its parameters; empty if there is none."""
        return (self.content_type or "").partition(";")[0].strip().lower()

    def document(self) -> bytes:
        """The body without its content encoding: inflated, if it is compressed.

        Raises:
            DecodeError: the encoding is not known, or the body is too large or cannot be inflated.
        """
        plain = plain_payload(self.body, self.content_encoding, limit=self.limit)
        if len(plain) > self.limit:
            raise DecodeError(f"its body has {len(plain)} bytes; at most {self.limit} are read as an envelope")
        return plain


@dataclass(frozen=True, slots=True)
class Malformed(Envelope):
    """A delivery that is not a message: it has no id, no type, or is over a limit. It is kept as it came.

    Attributes:
        reason: why it is not a message.
        kind: the reason of its dead letter: `malformed`, or `undecodable` if a reader knows its envelope.
    """

    reason: str = ""
    kind: str = "malformed"

    @classmethod
    def of(cls, envelope: Envelope, reason: str, kind: str = "malformed") -> Self:
        """The delivery in this envelope, which is not a message for this reason."""
        came = {each.name: getattr(envelope, each.name) for each in fields(Envelope)}
        return cls(**came, reason=reason, kind=kind)


Reader = Callable[[Envelope], Message | None]
"""Turns an envelope into a message, or returns None if it is not of its kind. It raises a `DecodeError` if it is, but
cannot be read. It is called in the event loop, once for each delivery, and must not block."""


def read_with(readers: tuple[Reader, ...], envelope: Envelope) -> Message | None:
    """The message of the first reader that knows the envelope; None if none does.

    Raises:
        DecodeError: a reader knows it and cannot read it, or fails in any other way.
    """
    for reader in readers:
        try:
            message: object = reader(envelope)
        except (DecodeError, EncodeError) as error:
            raise DecodeError(printable(f"{_name(reader)}: {text_of(error)}", LONGEST_ERROR)) from error
        except Exception as error:
            raise DecodeError(printable(f"{_name(reader)} failed: {first_line(error)}", LONGEST_ERROR)) from error
        if isinstance(message, Message):
            return message
        if message is not None:
            raise DecodeError(f"{_name(reader)} returned {type(message).__name__}; a Message or None is accepted")
    return None


def _name(reader: Reader) -> str:
    """The name of a reader in errors: that of the function or of the class."""
    return f"reader {getattr(reader, '__name__', type(reader).__name__)}"


def parse_json(document: bytes | msgspec.Raw, kind: Any) -> Any:
    """The JSON document as an instance of `kind`; a `DecodeError` if it is another one, or is nested too deeply."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodeError(f"the envelope is not valid: {printable(str(error), 300)}") from error
    except RecursionError:
        raise DecodeError("the envelope is nested too deeply") from None


def scalars(values: Mapping[str, Any], prefix: str) -> dict[str, object]:
    """Those of the values that a header can have, under their names behind `prefix`; too many are a `DecodeError`."""
    if len(values) > MOST_HEADERS:
        raise DecodeError(f"the envelope has {len(values)} headers; at most {MOST_HEADERS} are read")
    return {
        prefix + name: value
        for name, value in values.items()
        if isinstance(value, str | int | float | None) and len(prefix + name) <= HEADERS_LIMIT
    }


def storable_or_none(value: object) -> str | None:
    """The text, if every table and broker can hold it: for properties that a message can do without."""
    return value if isinstance(value, str) and is_storable_name(value) else None


def moment_of(value: object) -> datetime | None:
    """The moment in a text, a timestamp or a number of milliseconds, in UTC.

    None if it is not a moment, is out of bounds, or has no time zone.
    """
    try:
        if isinstance(value, str) and len(value) <= LONGEST_TIME:
            value = datetime.fromisoformat(value)
        elif type(value) is int:
            value = datetime.fromtimestamp(value / 1000, UTC)
        if not isinstance(value, datetime):
            return None
        check_moment("time", value)
        return value.astimezone(UTC)
    except (EncodeError, OverflowError, OSError, ValueError):
        return None
