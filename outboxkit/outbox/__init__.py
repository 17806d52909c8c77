"""The outbox: `add` writes a message next to the business rows, in the caller's own transaction."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

from sqlalchemy.orm import Session, scoped_session

from outboxkit import ids, statements
from outboxkit.codec import payloads
from outboxkit.codec.compression import INFLATED_LIMIT, WORTHWHILE, deflate
from outboxkit.codec.rows import Sending, to_row
from outboxkit.database.transaction import AnySession, session_of
from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.events import Declaration, declaration_of_instance, is_event
from outboxkit.message import (
    FIELDS,
    NAME_LIMIT,
    Message,
    caused_by,
    check_headers,
    check_moment,
    current_handling,
    is_storable_name,
)
from outboxkit.outbox.pending import Draft, keep_until_flush, writing_connection
from outboxkit.telemetry import tracing

__all__ = ["AnySession", "Options", "add", "add_all", "cancel"]


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
            transaction is adding it, the flush waits for its end. Needs `message_id`.
        topic: the routing key; by default the event's name.
        correlation_id: shared by a message and all that follow from it.
        destination: the destination whose relay publishes it (`outboxkit relay --destination NAME`); by default its
            event's own.
        max_payload_bytes: the largest payload that is accepted, 1 MiB by default. Send a reference to larger
            content.
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


def _check_options(caller: str, options: Options) -> None:
    """Refuse options that no message can have."""
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    check_headers(options.get("headers") or {})
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


def add(session: AnySession, event: object, **options: Unpack[Options]) -> Message:
    """Send `event` if, and only if, the session's transaction commits.

    An ordinary function for every kind of session, as `AsyncSession.add` is. It encodes at once, so that a bad event
    fails in the caller's stack, and does no I/O. The row is written with the session's next flush, after the business
    rows. A rollback, also one to a savepoint, forgets the message. Until the flush `expunge_all` and `close` forget it,
    too, as they forget new objects.

    Inside a handler the correlation id, the causation id and the trace context come from the message being handled.

    Args:
        session: a `Session`, an `AsyncSession`, or a scoped variant of either.
        event: an instance of an `@event` class, or a ready-made `Message`, whose own properties are the defaults of the
            options then.
        options: as `Options` says: `key`, `headers`, `deliver_at` and others.

    Returns:
        The message as it will be sent.

    Raises:
        EncodeError: the event, or one of the options, cannot be stored and sent.
        ConfigurationError: the class is not an `@event`, or `max_payload_bytes` is not a whole number from 1.
        TypeError: `session` is none of the four kinds, or there is no such option.
        TransactionRequired: the session's connection is in autocommit mode. The flush raises it, before it writes a
            row.
    """
    opened = session_of(session, "outbox.add")
    _check_options("add", options)
    draft = _Drafts(options, opened).of(event)
    keep_until_flush(opened, [draft])
    return draft.message


def add_all(session: AnySession, events: Iterable[object], **options: Unpack[Options]) -> list[Message]:
    """`add` for many events with the same options: all of them, or none if one cannot be encoded.

    They are inserted in their order with the session's next flush, on PostgreSQL in one statement for each thousand.

    Raises:
        EncodeError: as `add`; also a `message_id` for more than one event.
        TypeError: as `add`; also one event in place of several.
    """
    opened = session_of(session, "outbox.add_all")
    _check_options("add_all", options)
    if isinstance(events, Message) or is_event(type(events)):
        kind = type(events).__qualname__
        raise TypeError(f"outbox.add_all takes several events, as in a list; found one, {kind}: outbox.add takes one")
    sequence = list(events)
    if options.get("message_id") is not None and len(sequence) > 1:
        raise EncodeError(
            f"message_id is for one message, and there are {len(sequence)} events; leave it out, or add them one by one"
        )
    maker = _Drafts(options, opened)
    drafts = [maker.of(event) for event in sequence]
    keep_until_flush(opened, drafts)
    return [draft.message for draft in drafts]


def cancel(session: Session | scoped_session[Any], message_id: str) -> bool:
    """Take a message back, in the session's transaction: it is not published if, and only if, that commits.

    The session is flushed first. While a relay is publishing the message, this waits for the result: a batch that was
    claimed ahead is locked for two publishes, each of `OUTBOXKIT_PUBLISH_TIMEOUT` at most. At isolation level
    REPEATABLE READ or above, PostgreSQL then raises a serialization failure instead. An earlier publish without an
    answer may have reached the broker all the same.

    With an `AsyncSession`: `await session.run_sync(outbox.cancel, message_id)`.

    For a message that waits for its time, a retry or an operator it costs one probe of an index. A ready one has no
    index by its id, so that inserts stay cheap. Then the whole outbox is read: some tenths of a second at a million
    waiting rows.

    Returns:
        True if the message was in the outbox; False if it was published, is a dead letter, or never existed.

    Raises:
        TypeError: `session` is an asynchronous one, or not a session.
        TransactionRequired: the session's connection is in autocommit mode.
    """
    opened = session_of(session, "outbox.cancel", "message_id")
    connection = writing_connection(opened)
    opened.flush()
    for statement in (statements.write.cancel_delayed(), statements.write.cancel_message()):
        if connection.execute(statement, {"message_id": message_id}).rowcount > 0:
            return True
    return False


class _Drafts:
    """Makes the messages of one call, with the same options and the same time.

    Args:
        options: of the call.
        session: the one that the messages are added to. If it is a handler's own, their ids follow from the message
            that is being handled: at most one run of the handler commits.
    """

    def __init__(self, options: Options, session: object) -> None:
        now = datetime.now(UTC)
        self._options = options
        self._handling = current_handling()
        origin = None if self._handling is None else self._handling.origin
        self._origin = origin if origin is not None and origin.session is session else None
        self._due_at = options.get("deliver_at")
        self._later = self._due_at if self._due_at is not None and self._due_at > now else None
        self._created_at = self._later or now
        self._limit = options.get("max_payload_bytes") or payloads.MAX_PAYLOAD_BYTES
        own = {name: options.get(name) for name in ("key", "headers", "topic", "correlation_id")}
        own["id"] = options.get("message_id")
        self._own: dict[str, Any] = {name: value for name, value in own.items() if value is not None}

    def of(self, event: object) -> Draft:
        """The draft of an event, or of a ready-made message."""
        if isinstance(event, Message):
            declaration, fields = Declaration(event.type), self._of_message(event)
        else:
            declaration = declaration_of_instance(event)
            fields = self._of_event(event, declaration)
        if declaration.strict_order and fields.get("key") is None:
            raise EncodeError(f"{declaration.name} is an event of strict_order, which needs a key; give key=...")
        is_traced = "traceparent" in (fields.get("headers") or ())
        if self._handling is not None:
            fields = caused_by(self._handling.message, fields)
        sending = Sending(
            self._due_at,
            self._options.get("expires_at"),
            declaration.discard_unroutable,
            bool(self._options.get("dedup")),
            self._options.get("destination") or declaration.destination,
            declaration.reply,
        )
        if not is_traced:
            fields["headers"] = tracing.created(fields, sending.destination)
        message = Message(**fields)
        row = to_row(message, declaration.aliases) | sending._asdict()
        return Draft(message, row, message.key if declaration.strict_order else None)

    def _of_event(self, event: object, declaration: Declaration) -> dict[str, Any]:
        if self._options.get("dedup") and "id" not in self._own:
            raise EncodeError(
                "dedup compares message ids, and a new one is always unique; give message_id=ids.derive(...)"
            )
        payload = payloads.encode(event, limit=self._limit)
        encoding = declaration.compress if WORTHWHILE <= len(payload) <= INFLATED_LIMIT else None
        return {
            "id": self._own.get("id") or self._new_id(declaration.name),
            "type": declaration.name,
            "version": declaration.version,
            "payload": payload if encoding is None else deflate(payload, encoding),
            "created_at": self._created_at,
            "content_encoding": encoding,
            **self._own,
        }

    def _new_id(self, type_: str) -> str:
        """A new id. In a handler's own session it follows from its message, and from the number of a type and key."""
        if self._handling is None or self._origin is None:
            return ids.new(at=self._later)
        key = self._own.get("key")
        number = self._origin.added[type_, key]
        self._origin.added[type_, key] += 1
        make = ids.derive_from if self._due_at is None else ids.derive  # what is due later has no time of now
        parts = (
            self._origin.installation,
            self._handling.handler or "",
            type_,
            number,
            *(() if key is None else (key,)),
        )
        return make(self._handling.message.id, *parts)

    def _of_message(self, message: Message) -> dict[str, Any]:
        if len(message.payload) > self._limit:
            raise EncodeError(
                f"the payload of {message.type} is {len(message.payload)} bytes long; at most {self._limit} are "
                "accepted (max_payload_bytes)"
            )
        fields = {name: getattr(message, name) for name in FIELDS}
        return fields | {"created_at": message.created_at or self._created_at} | self._own
