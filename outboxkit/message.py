"""The message that travels, `Message`, and the message that is being handled in this context."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from outboxkit.errors import EncodeError

NAME_LIMIT = 255
"""The maximum bytes of an AMQP 0-9-1 short string (section 4.2.5.3), which ids, types and routing keys are."""

FIRST_MOMENT, LAST_MOMENT = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""The moments that a message can carry: a day inside the range that Python can show in every time zone."""

MAX_VERSION = 2**31 - 1
"""The largest version of an event: a column holds it."""

DEFAULT_DESTINATION = "default"
"""The destination of an event that declares none: the broker of the relays that name none either."""

TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers of a trace context (W3C)."""
TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,200})?")
"""A `traceparent` (W3C Trace Context, section 3.2), also one of a later version."""
MOST_STATE = 512
"""A longer `tracestate` is left out; W3C asks for no more to be passed on."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. It is frozen: the message that was added is the one that is sent and handled.

    Attributes:
        id: the same on every publish of the message, for ever; an inbox recognises a duplicate by it.
        type: the event's registered name, such as `OrderConfirmed`.
        payload: the encoded event and nothing else.
        key: the ordering key, usually the aggregate's id.
        topic: the routing key; None means the type.
        headers: the user's own headers, and `traceparent`/`tracestate`.
        correlation_id: shared by a message and by all that it causes, however far.
        causation_id: the id of the message whose handler added this one.
        created_at: the time (UTC) at which it was added, or is due if that is later. None if a foreign publisher sent
            no timestamp.
        content_type: MIME type of the payload.
        content_encoding: the payload's encoding, if it has one.
        queue: the one queue that it is published to, whatever is bound; None: the routing key decides.
        version: the version of its event's fields, from 1. A message of a foreign publisher that names none has 1.

    Raises:
        EncodeError: an id or a type is empty, or a text has characters that AMQP or PostgreSQL cannot carry. Or the
            moment has no time zone or is near the end of the calendar, or the version is not a whole number from 1.
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
    queue: str | None = None
    version: int = 1

    def __post_init__(self) -> None:
        for name in ("id", "type"):
            if not getattr(self, name):
                raise EncodeError(
                    f"a message needs {'an id' if name == 'id' else 'a type'}; found {getattr(self, name)!r}"
                )
        for name in TEXT_FIELDS:
            _check_text(name, getattr(self, name))
        if not isinstance(self.payload, bytes):
            raise EncodeError(f"message payload is a {type(self.payload).__name__}; it must be bytes")
        check_moment("message created_at", self.created_at)
        if not is_version(self.version):
            raise EncodeError(
                f"message version is {self.version!r}; a whole number from 1 to {MAX_VERSION} is accepted"
            )
        check_headers(self.headers)
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))

    @property
    def routing_key(self) -> str:
        """The exchange's routing key: the topic, or else the type."""
        return self.type if self.topic is None else self.topic


DEFAULTS: Mapping[str, Any] = {
    field.name: None if field.default is MISSING else field.default for field in fields(Message)
}
"""The default of each field, None if it has none, in their order."""
FIELDS = tuple(DEFAULTS)
TEXT_FIELDS = tuple(field.name for field in fields(Message) if field.type in (str, str | None))
"""Those that are texts of at most 255 bytes."""

_SETTERS = tuple(vars(Message)[name].__set__ for name in FIELDS)
_HEADERS = FIELDS.index("headers")


def unchecked(values: Iterable[Any]) -> Message:
    """A message from values that were checked before: all fields in their order, without validation.

    For the relay, which makes one for every row; it takes a third of the time of `Message(...)`. The headers are not
    copied: the dict must be the message's own.
    """
    message = object.__new__(Message)
    for setter, value in zip(_SETTERS, values, strict=True):
        setter(message, value)
    _SETTERS[_HEADERS](message, MappingProxyType(message.headers))
    return message


def changed(message: Message, **fields: Any) -> Message:
    """`dataclasses.replace` for fields that were checked before, as those of another message."""
    return unchecked(({name: getattr(message, name) for name in FIELDS} | fields).values())


def caused_by(cause: Message, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that the handling of `cause` makes: with its correlation id and trace context.

    A correlation id, a causation id and a trace context that `fields` has already stay as they are. An invalid context
    is ignored: one of a foreign message may be as long as all headers of a row may be.
    """
    headers = fields.get("headers") or {}
    inherited = {} if "traceparent" in headers else _trace_of(cause.headers)
    return {
        **fields,
        "headers": {**inherited, **headers} if inherited else headers,
        "correlation_id": fields.get("correlation_id") or cause.correlation_id or cause.id,
        "causation_id": fields.get("causation_id") or cause.id,
    }


def _trace_of(headers: Mapping[str, object]) -> dict[str, str]:
    parent, state = (headers.get(name) for name in TRACE_HEADERS)
    if not isinstance(parent, str) or TRACEPARENT.fullmatch(parent) is None:
        return {}
    is_short = isinstance(state, str) and len(state) <= MOST_STATE
    return {"traceparent": parent} | ({"tracestate": str(state)} if is_short else {})


def check_headers(headers: object) -> None:
    """Refuse headers that are not a mapping. `codec.rows.encode_headers` checks their names and values."""
    if type(headers) is not dict and not isinstance(headers, Mapping):
        raise EncodeError(
            f"message headers is {headers!r} ({type(headers).__name__}); it must be a mapping, such as a dict"
        )


def check_moment(name: str, moment: object) -> None:
    """Refuse a value that is not a moment, or not one that every clock, table and broker can hold. None may pass.

    Raises:
        EncodeError: it is another kind of value, has no time zone, or is not from `FIRST_MOMENT` to `LAST_MOMENT`.
    """
    if moment is None or (type(moment) is datetime and moment.tzinfo is UTC and FIRST_MOMENT <= moment <= LAST_MOMENT):
        return
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise EncodeError(
            f"{name} is {moment!r}; it must be a datetime with a time zone, such as datetime.now(UTC) + delay"
        )
    if not FIRST_MOMENT <= moment <= LAST_MOMENT:
        raise EncodeError(
            f"{name} is {moment}; a moment from {FIRST_MOMENT.date()} to {LAST_MOMENT.date()} UTC is accepted. "
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
    if name == "queue" and not text:
        raise EncodeError("message queue is ''; None is accepted, or the name of a queue")
    if "\0" in text:
        raise EncodeError(f"message {name} {text!r} holds a NUL character, which PostgreSQL cannot store")


def is_version(value: object) -> bool:
    """Whether it can be the version of an event: a whole number from 1 that a column can hold."""
    return type(value) is int and 1 <= value <= MAX_VERSION


def storable(text: str) -> str:
    """The text with escapes for the characters that PostgreSQL cannot store."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def is_storable_name(name: str) -> bool:
    """Whether every table and every broker can hold it: 1 to 255 bytes, no NUL, no lone surrogate."""
    try:
        return 0 < len(name.encode()) <= NAME_LIMIT and "\0" not in name
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction that has a handler's inbox row, in which the ids of new messages follow from that row.

    Attributes:
        session: its session.
        installation: a text that only these tables have: in another database a handler may have the same name.
        added: the number of messages of each type and key that the handler has added.
    """

    session: object
    installation: str
    added: Counter[tuple[str, str | None]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Handling:
    """The message that is being handled, and its handler.

    Attributes:
        origin: of the ids of messages that the handler adds; None if they are new ones.
        keyless_effects: the names of its effects that were given no key, whichever of its tasks and threads made them.
    """

    message: Message
    handler: str | None = None
    origin: Origin | None = field(default=None, compare=False, repr=False)
    keyless_effects: list[str] = field(default_factory=list, compare=False, repr=False)


_handling: ContextVar[Handling | None] = ContextVar("outboxkit_handling", default=None)
_MESSAGE_ID, _TYPE, _HANDLER, _CORRELATION_ID = (
    ContextVar[object](f"structlog_{name}") for name in ("message_id", "type", "handler", "correlation_id")
)
"""The same for structlog, whose `merge_contextvars` takes variables by this prefix, unless they are an Ellipsis."""


def current_handling() -> Handling | None:
    """The message and the handler that is running in this context, if any."""
    return _handling.get()


@contextmanager
def handling(message: Message, *, handler: str | None = None, origin: Origin | None = None) -> Iterator[None]:
    """Make `message` the cause of every message that is added inside the block, and part of lines that are logged."""
    token = _handling.set(Handling(message, handler, origin))
    message_id, type_ = _MESSAGE_ID.set(message.id), _TYPE.set(message.type)
    name, correlation = _HANDLER.set(handler or ...), _CORRELATION_ID.set(message.correlation_id or message.id)
    try:
        yield
    finally:
        _CORRELATION_ID.reset(correlation)
        _HANDLER.reset(name)
        _TYPE.reset(type_)
        _MESSAGE_ID.reset(message_id)
        _handling.reset(token)
