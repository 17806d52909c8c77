"""Drafts: messages and their rows, from events and the options of `outbox.add`."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypedDict

from outboxkit import codec, ids
from outboxkit.compression import INFLATED_LIMIT, WORTHWHILE, deflate
from outboxkit.envelope import Sending, to_row
from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.events import Declaration, declaration_of_instance
from outboxkit.message import (
    NAME_LIMIT,
    Handling,
    Message,
    Origin,
    changed,
    check_moment,
    current_handling,
    is_storable_name,
)
from outboxkit.telemetry import tracing


class Options(TypedDict, total=False):
    """The keyword arguments of `outbox.add` and `outbox.add_all`; None means the default.

    Attributes:
        key: the ordering key, usually the aggregate's id: messages of one key stay in order.
        headers: str, int, bool or None values, sent as AMQP headers.
        message_id: a new UUIDv7 by default; `ids.derive(...)` for a producer that may run twice. In a handler's own
            session the default is derived from the message that it handles, so that another run gives the same id.
        deliver_at: publish not before this moment (aware datetime), by the database's clock.
        expires_at: publish not after this moment (aware datetime), by the database's clock; the message then becomes a
            dead letter, as expired.
        dedup: write nothing if the outbox has a message of this id that was added with `dedup` too. If another
            transaction is adding it, the flush waits for that one's end. Needs `message_id`.
        topic: the routing key; by default the event's name.
        correlation_id: shared by all messages of one story.
        destination: the destination whose relay publishes it (`outboxkit relay --destination NAME`); by default its
            event's own.
        max_payload_bytes: the largest payload that is accepted, `codec.MAX_PAYLOAD_BYTES` (1 MiB) by default. Send a
            reference to larger content.
    """

    key: str | None
    headers: Mapping[str, object] | None
    message_id: str | None
    deliver_at: datetime | None
    expires_at: datetime | None
    dedup: bool
    topic: str | None
    correlation_id: str | None
    destination: str | None
    max_payload_bytes: int | None


def check_options(caller: str, options: Options) -> None:
    """Refuse options that no message can have.

    Raises:
        TypeError: a name is not one of `Options`.
        EncodeError: a moment has no time zone or is out of bounds, or the message would expire before it is delivered.
            Or the destination is not a name.
        ConfigurationError: `max_payload_bytes` is not a whole number from 1.
    """
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    deliver_at, expires_at = options.get("deliver_at"), options.get("expires_at")
    check_moment("deliver_at", deliver_at)
    check_moment("expires_at", expires_at)
    if deliver_at is not None and expires_at is not None and expires_at <= deliver_at:
        raise EncodeError(
            f"expires_at is {expires_at}, and deliver_at {deliver_at}: the message would expire before it may leave. "
            "Give a later expires_at, or leave it out"
        )
    destination = options.get("destination")
    if destination is not None and (not isinstance(destination, str) or not is_storable_name(destination)):
        raise EncodeError(f"destination is {destination!r}; a name of 1 to {NAME_LIMIT} bytes is accepted")
    limit = options.get("max_payload_bytes")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigurationError(f"max_payload_bytes is {limit!r}; a whole number of bytes from 1 is accepted")


class Draft(NamedTuple):
    """A message, its row, and the key whose writers wait for each other, if the event has `strict_order`."""

    message: Message
    row: tuple[Any, ...]
    dedup: bool
    strict_key: str | None


class Drafts:
    """Makes the messages of one call, with the same options and the same time.

    Args:
        options: of the call.
        session: the one that the messages are added to. If it is a handler's own, their ids follow from the message
            that is being handled: at most one run of the handler commits.
    """

    def __init__(self, options: Options, session: object = None) -> None:
        now = datetime.now(UTC)
        self._options = options
        self._handling = current_handling()
        origin = None if self._handling is None else self._handling.origin
        self._origin = origin if origin is not None and origin.session is session else None
        self._id: str | None = options.get("message_id")
        self._due_at = options.get("deliver_at")
        self._later = self._due_at if self._due_at is not None and self._due_at > now else None
        self._created_at = self._later or now
        self._dedup = bool(options.get("dedup"))
        self._limit = options.get("max_payload_bytes") or codec.MAX_PAYLOAD_BYTES
        properties = {name: options.get(name) for name in ("key", "headers", "topic", "correlation_id")}
        self._properties: dict[str, Any] = {name: value for name, value in properties.items() if value is not None}

    def of(self, event: object) -> Draft:
        """The draft of an event, or of a ready-made message.

        Raises:
            EncodeError: it cannot be stored and sent.
            ConfigurationError: the class is not an `@event`.
        """
        if isinstance(event, Message):
            declaration, message = Declaration(event.type), self._complete(event)
        else:
            declaration = declaration_of_instance(event)
            message = self._encode(event, declaration)
            if self._handling is not None and self._origin is not None and self._id is None:
                make = ids.derive_from if self._due_at is None else ids.derive  # what is due later has no time of now
                message = changed(
                    message, id=make(self._handling.message.id, *_parts(self._handling, self._origin, message))
                )
        if declaration.strict_order and message.key is None:
            raise EncodeError(f"{message.type} is an event of strict_order, which needs a key; give key=...")
        is_traced = "traceparent" in message.headers
        if self._handling is not None:
            message = message.caused_by(self._handling.message)
        sending = self._sending(declaration)
        if not is_traced:
            message = tracing.created(message, sending.destination)
        strict_key = message.key if declaration.strict_order else None
        return Draft(message, to_row(message) + sending, self._dedup, strict_key)

    def _encode(self, event: object, declaration: Declaration) -> Message:
        if self._dedup and self._id is None:
            raise EncodeError(
                "dedup compares message ids, and a new one is always unique; give message_id=ids.derive(...)"
            )
        payload = codec.encode(event, limit=self._limit)
        encoding = declaration.compress if WORTHWHILE <= len(payload) <= INFLATED_LIMIT else None
        return Message(
            id=ids.new(at=self._later) if self._id is None else self._id,
            type=declaration.name,
            version=declaration.version,
            payload=payload if encoding is None else deflate(payload, encoding),
            created_at=self._created_at,
            content_encoding=encoding,
            **self._properties,
        )

    def _complete(self, message: Message) -> Message:
        if len(message.payload) > self._limit:
            raise EncodeError(
                f"the payload of {message.type} is {len(message.payload)} bytes long; at most {self._limit} are "
                "accepted (max_payload_bytes)"
            )
        properties = self._properties if self._id is None else {**self._properties, "id": self._id}
        return replace(message, created_at=message.created_at or self._created_at, **properties)

    def _sending(self, declaration: Declaration) -> Sending:
        return Sending(
            self._due_at,
            self._options.get("expires_at"),
            declaration.discard_unroutable,
            self._dedup,
            self._options.get("destination") or declaration.destination,
            declaration.reply,
        )


def _parts(handling: Handling, origin: Origin, message: Message) -> tuple[ids.Part, ...]:
    """The parts of the id of a message that a handler adds; a number tells apart those of one type and key."""
    number = origin.added[message.type, message.key]
    origin.added[message.type, message.key] += 1
    key = () if message.key is None else (message.key,)
    return (origin.installation, handling.handler or "", message.type, number, *key)
