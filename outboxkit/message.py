"""The envelope that travels: `Message`, and the message that is being handled right now."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType

from outboxkit.errors import EncodeError

NAME_LIMIT = 255
"""Bytes that an AMQP 0-9-1 short string holds (section 4.2.5.3): ids, types and routing keys are such strings."""

EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""The moments that a message can carry: a day inside of what Python's calendar can show in every time zone."""

DEFAULT_DESTINATION = "default"
"""Where a message goes whose event names no destination: the broker of the relays that name none either."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Frozen: what was added is what is sent, and what arrived is what is handled.

    Attributes:
        id: the same on every publish of the message, for ever; what an inbox recognises a duplicate by.
        type: the event's registered name, such as `OrderConfirmed`.
        payload: the encoded event and nothing else.
        key: the ordering key, usually the aggregate's id.
        topic: the routing key; the type where it is None.
        headers: the user's own headers, and `traceparent`/`tracestate`.
        correlation_id: shared by every message of one story.
        causation_id: the id of the message whose handler added this one.
        created_at: when it was added, or is due where that is later (UTC); None where a foreign publisher did not say.
        content_type: MIME type of the payload.
        content_encoding: the payload's encoding, where it has one.

    Raises:
        EncodeError: an id or a type is empty, a text holds what AMQP and PostgreSQL cannot carry, or the moment has no
            time zone or is near the end of the calendar.
    """

    id: str
    type: str
    payload: bytes
    key: str | None = None
    topic: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict, hash=False)
    correlation_id: str | None = None
    causation_id: str | None = None
    created_at: datetime | None = None
    content_type: str = "application/json"
    content_encoding: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "type"):
            if not getattr(self, name):
                raise EncodeError(
                    f"a message needs {'an id' if name == 'id' else 'a type'}; found {getattr(self, name)!r}"
                )
        for name in (
            "id",
            "type",
            "key",
            "topic",
            "correlation_id",
            "causation_id",
            "content_type",
            "content_encoding",
        ):
            _check_text(name, getattr(self, name))
        if not isinstance(self.payload, bytes):
            raise EncodeError(f"message payload is a {type(self.payload).__name__}; it must be bytes")
        check_moment("message created_at", self.created_at)
        if type(self.headers) is not dict and not isinstance(self.headers, Mapping):
            raise EncodeError(
                f"message headers is {self.headers!r} ({type(self.headers).__name__}); it must be a mapping, such as a "
                "dict"
            )
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))

    @property
    def routing_key(self) -> str:
        """What the exchange routes by: the topic, or else the type."""
        return self.type if self.topic is None else self.topic


_Fields = tuple[
    str, str, bytes, str | None, str | None, dict[str, object], str | None, str | None, datetime | None, str, str | None
]

(
    _set_id,
    _set_type,
    _set_payload,
    _set_key,
    _set_topic,
    _set_headers,
    _set_correlation_id,
    _set_causation_id,
    _set_created_at,
    _set_content_type,
    _set_content_encoding,
) = (vars(Message)[field.name].__set__ for field in fields(Message))


def unchecked(*values: *_Fields) -> Message:
    """A message from a row that was checked when it was written: all fields in their order, none looked at again.

    For the relay, which makes one for every row; anybody else writes `Message(...)`. It takes a third of the time.
    The headers are not copied: the dict must be the message's own.
    """
    id_, type_, payload, key, topic, headers, correlation_id, causation_id, created_at, content_type, encoding = values
    made = object.__new__(Message)
    _set_id(made, id_)
    _set_type(made, type_)
    _set_payload(made, payload)
    _set_key(made, key)
    _set_topic(made, topic)
    _set_headers(made, MappingProxyType(headers))
    _set_correlation_id(made, correlation_id)
    _set_causation_id(made, causation_id)
    _set_created_at(made, created_at)
    _set_content_type(made, content_type)
    _set_content_encoding(made, encoding)
    return made


def check_moment(name: str, moment: object) -> None:
    """Refuse what is no moment, and one that no clock, table and broker agree about.

    Args:
        name: what the error calls it.
        moment: an aware datetime from `EARLIEST` to `LATEST`, or None.

    Raises:
        EncodeError: it is another kind of value, has no time zone, or is outside of these bounds.
    """
    if moment is None or (type(moment) is datetime and moment.tzinfo is UTC and EARLIEST <= moment <= LATEST):
        return
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise EncodeError(
            f"{name} is {moment!r}; it must be a datetime with a time zone, such as datetime.now(UTC) + delay"
        )
    if not EARLIEST <= moment <= LATEST:
        raise EncodeError(
            f"{name} is {moment}; a moment from {EARLIEST.date()} to {LATEST.date()} UTC is accepted. "
            f"If it stands for never, leave {name.rpartition(' ')[2]} out"
        )


def _check_text(name: str, text: str | None) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise EncodeError(f"message {name} is {text!r} ({type(text).__name__}); it must be a str")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise EncodeError(f"message {name} {text!r} is not valid Unicode: it holds a lone surrogate") from None
    if size > NAME_LIMIT:
        raise EncodeError(f"message {name} is {size} bytes long; AMQP carries at most {NAME_LIMIT}: {text[:40]!r}…")
    if "\0" in text:
        raise EncodeError(f"message {name} {text!r} holds a NUL character, which PostgreSQL cannot store")


def storable(text: str) -> str:
    """Any text as one that PostgreSQL can store: what it cannot hold is written as an escape."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def is_storable_name(name: str) -> bool:
    """Whether every table and every broker can hold it: 1 to 255 bytes, no NUL, no lone surrogate."""
    try:
        return 0 < len(name.encode()) <= NAME_LIMIT and "\0" not in name
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class Handling:
    """What is being handled, and by whom.

    Attributes:
        message: the message.
        handler: the handler's durable name; None where nobody said.
        database: the file that holds the handler's transaction, on SQLite, which has one writer at a time.
    """

    message: Message
    handler: str | None = None
    database: str | None = None


_handling: ContextVar[Handling | None] = ContextVar("outboxkit_handling", default=None)


def being_handled() -> Message | None:
    """The message whose handler is running in this context, if any: what a message added now was caused by."""
    current = _handling.get()
    return current.message if current is not None else None


def current_handling() -> Handling | None:
    """What is being handled in this context, and by whom, if anything is."""
    return _handling.get()


@contextmanager
def handling(message: Message, *, handler: str | None = None, database: str | None = None) -> Iterator[None]:
    """Mark `message` as the cause of every message that is added inside the block."""
    token = _handling.set(Handling(message, handler, database))
    try:
        yield
    finally:
        _handling.reset(token)
