"""The messages that a test adds: compared with events, and delivered to handlers in the test's own session.

The functions are plain ones. With an `AsyncSession`: `await session.run_sync(outbox_messages)`.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, scoped_session

from outboxkit import ids, inbox, statements
from outboxkit.codec import payloads
from outboxkit.codec.headers import ALIASES
from outboxkit.codec.rows import COLUMNS, from_row
from outboxkit.database.transaction import session_of
from outboxkit.errors import ConfigurationError
from outboxkit.events import declaration_of_instance, is_event, name_of
from outboxkit.inbox import Handler, Outcome, handler_of, handlers_in
from outboxkit.message import DEFAULT_DESTINATION, Message
from outboxkit.outbox.pending import pending_drafts
from outboxkit.statements.dialects import has_one_writer
from outboxkit.tables import outbox

LIMIT = 1000
"""`deliver_all` gives up after so many messages: handlers go on causing them."""
SyncSession = Session | scoped_session[Any]
Handlers = ModuleType | Callable[..., Any] | Handler | Collection[ModuleType | Callable[..., Any] | Handler]


@dataclass(frozen=True, eq=False)
class AddedMessage:
    """A message in the outbox, which is due at once if `due_at` is None. It equals an event of its name and content."""

    message: Message
    due_at: datetime | None = None
    destination: str = DEFAULT_DESTINATION

    @property
    def type(self) -> str:
        """The message's type."""
        return self.message.type

    @property
    def key(self) -> str | None:
        """The message's key."""
        return self.message.key

    @property
    def payload(self) -> Any:
        """The decoded JSON."""
        return json.loads(self.message.payload)

    def __eq__(self, other: object) -> bool:
        if not is_event(type(other)):
            return NotImplemented
        return self.type == name_of(type(other)) and self.payload == json.loads(payloads.encode(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = {"key": self.key, "deliver_at": self.due_at, **dict(self.message.headers)}
        shown = [f" {name}={value!r}" for name, value in more.items() if value is not None]
        return f"<{self.type} {self.message.payload.decode(errors='replace')}{''.join(shown)}>"


class OutboxMessages(list[AddedMessage]):
    """The messages of an outbox in their order, which compare with events."""

    def of(self, *types: type | str) -> "OutboxMessages":
        """Those of these event classes, or of these names."""
        names = {each if isinstance(each, str) else name_of(each) for each in types}
        return OutboxMessages(each for each in self if each.type in names)

    def one(self, event: object, **properties: object) -> AddedMessage:
        """The only message that is this event, or of this class or name, with properties such as `key` and `due_at`.

        Raises:
            AssertionError: there is none, or more than one; the text has all messages.
        """
        __tracebackhide__ = True
        named = self.of(event) if isinstance(event, type | str) else [each for each in self if each == event]
        matches = [each for each in named if all(_property(each, name) == value for name, value in properties.items())]
        if len(matches) == 1:
            return matches[0]
        what = event.__name__ if isinstance(event, type) else event if isinstance(event, str) else repr(event)
        extra = "".join(f", {name}={value!r}" for name, value in properties.items())
        there = "".join(f"\n  {each!r}" for each in self) or " nothing"
        raise AssertionError(f"{len(matches)} messages are {what}{extra}, and not one. The outbox has:{there}")


def _property(added: AddedMessage, name: str) -> object:
    value = getattr(added, name) if hasattr(added, name) else getattr(added.message, name)
    return dict(value) if isinstance(value, Mapping) else value


def outbox_messages(session: SyncSession) -> OutboxMessages:
    """The messages that the session's transaction sees in the outbox, and those that it has added and not flushed.

    Nothing is flushed. `assert outbox_messages(session) == [OrderConfirmed(1, total)]` compares their events.
    """
    plain = session_of(session, "outbox_messages", "")
    columns = [outbox.c[name] for name in (*COLUMNS, "due_at", "destination")]
    with plain.no_autoflush:
        rows = plain.execute(select(*columns).order_by(outbox.c.position)).all()
    found = OutboxMessages()
    for *values, due_at, destination in rows:
        message = from_row(values)
        headers = {name: value for name, value in message.headers.items() if name != ALIASES}  # which its row alone has
        found.append(AddedMessage(replace(message, headers=headers), due_at, destination))
    for draft in pending_drafts(plain):
        found.append(AddedMessage(draft.message, draft.row["due_at"], draft.row["destination"]))
    return found


def assert_round_trips(event: object) -> None:
    """Assert that a consumer reads this event back as it is. Classes are checked anyway; this is for their values.

    Raises:
        AssertionError: it is decoded to another value, such as a UUID in a field of type `Any`, which becomes text.
        EncodeError, DecodeError: it cannot be encoded, or its class refuses its own payload.
    """
    decoded = payloads.decode(type(event), payloads.encode(event))
    if decoded != event:
        raise AssertionError(f"{event!r} comes back as {decoded!r}")


def message_of(event: object, **properties: Any) -> Message:
    """A message with this event, as a consumer gets it; `properties` are further fields of `Message`, such as `key`.

    Raises:
        EncodeError: it cannot be encoded.
    """
    declaration = declaration_of_instance(event)
    known: dict[str, Any] = {"id": ids.new(), "type": declaration.name, "version": declaration.version}
    return Message(payload=payloads.encode(event), **(known | properties))


def deliver(session: SyncSession, handler: Callable[..., Any] | Handler, event: object) -> Outcome:
    """Deliver an event to a handler, in a savepoint of the session's transaction, as a consumer does.

    With an `AsyncSession`: `await session.run_sync(deliver, handler, event)`. Nothing is committed. The same `Message`
    a second time is a duplicate: the handler is not called.

    Raises:
        Exception: whatever the handler raises, such as `Retry`; nothing of it is left then.
        ConfigurationError: it handles events of other types.
    """
    spec, plain = spec_of(handler), _begun(session)
    with plain.begin_nested():
        return inbox.run_once(plain, message_for(spec, event), spec)


def deliver_all(session: SyncSession, handlers: Handlers, *, now: datetime | None = None) -> OutboxMessages:
    """Deliver the messages in the outbox that are due, and those that handlers add, until none is left.

    Each handler runs in a savepoint. A message that all its handlers have handled leaves the outbox, and is returned.
    Messages without a handler, those of other destinations, and those that are due after `now`, stay where they are.

    With an `AsyncSession`: `await session.run_sync(deliver_all, handlers)`. Nothing is committed.

    Raises:
        Exception: whatever a handler raises. Its message stays in the outbox.
        AssertionError: handlers go on causing messages; the text has their types.
        ConfigurationError: `handlers` has something that is neither a module nor a handler.
    """
    specs, plain, moment = specs_of(handlers), _begun(session), now or datetime.now(UTC)
    types = {name for spec in specs for name in spec.message_types}
    done = OutboxMessages()
    while due := _due(plain, types, moment):
        for each in due:
            for spec in specs:
                if each.type in spec.message_types:
                    with plain.begin_nested():
                        inbox.run_once(plain, each.message, spec)
            plain.execute(delete(outbox).where(outbox.c.message_id == each.message.id))
        done += due
        if len(done) > LIMIT:
            names = ", ".join(sorted({each.type for each in done[-LIMIT:]}))
            raise AssertionError(f"handlers go on causing messages after {LIMIT} of them, of these types: {names}")
    return done


def _due(session: Session, types: Collection[str], now: datetime) -> list[AddedMessage]:
    session.flush()
    added = [each for each in outbox_messages(session) if each.destination == DEFAULT_DESTINATION]
    return [each for each in added if each.type in types and (each.due_at is None or each.due_at <= now)]


def _begun(session: SyncSession) -> Session:
    """The session in a transaction in which savepoints can be set."""
    plain = session_of(session, "deliver", "...")
    connection = plain.connection()
    if has_one_writer(connection.dialect.name):  # its driver begins with a write, and a savepoint is none
        connection.execute(statements.inbox.probe_writable())
    return plain


def message_for(handler: Handler, event: object) -> Message:
    """A message with this event, for a handler of its type.

    Raises:
        ConfigurationError: the handler handles other types.
    """
    message = event if isinstance(event, Message) else message_of(event)
    if message.type not in handler.message_types:
        handled = ", ".join(map(repr, handler.message_types))
        raise ConfigurationError(f"handler {handler.name!r} handles {handled}; the event is {message.type!r}")
    return message


def spec_of(handler: Callable[..., Any] | Handler) -> Handler:
    """The `Handler` of a function, or the one that is given."""
    return handler if isinstance(handler, Handler) else handler_of(handler)


def specs_of(handlers: Handlers) -> list[Handler]:
    """The handlers in modules, of functions, and that are `Handler` objects.

    Raises:
        ConfigurationError: something else is there.
    """
    given: Any = handlers
    if isinstance(given, ModuleType):
        return handlers_in([given])
    if isinstance(given, Collection) and not isinstance(given, str):
        return [spec for each in given for spec in specs_of(each)]
    return [spec_of(given)]
