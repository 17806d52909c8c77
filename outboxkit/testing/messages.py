"""The messages of a test: those that it has added, and those that it delivers, on its own session and without a broker.

Functions on a `Session`. With an `AsyncSession`: `await session.run_sync(outbox_messages)`.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, scoped_session

from outboxkit import ids
from outboxkit.codec import payloads
from outboxkit.codec.envelope import COLUMNS, from_row
from outboxkit.database.transaction import session_of
from outboxkit.errors import ConfigurationError, OutboxkitError
from outboxkit.events import declaration_of_instance, is_event, name_of
from outboxkit.inbox import Handler
from outboxkit.message import Message
from outboxkit.outbox.pending import pending_drafts
from outboxkit.tables import outbox

_ORDER = ("due_at", "destination", "position", "attempts")


@dataclass(frozen=True, eq=False)
class AddedMessage:
    """A message in the outbox. It equals an event of the same name and content.

    Attributes:
        message: the message.
        due_at: not before this moment; None: at once.
        destination: the destination.
        position: its place in the outbox; None if the session has not flushed it.
        attempts: the number of failed attempts.
    """

    message: Message
    due_at: datetime | None = None
    destination: str = "default"
    position: int | None = None
    attempts: int = 0

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

    @property
    def event(self) -> Any:
        """An instance of the imported event class of this name; the decoded JSON if there is none."""
        for cls in _classes(self.type):
            try:
                return payloads.decode(cls, self.message.payload)
            except OutboxkitError:
                continue
        return self.payload

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AddedMessage):
            return self.message == other.message and self.due_at == other.due_at
        if isinstance(other, Message):
            return self.message == other
        if not is_event(type(other)):
            return NotImplemented
        return self.type == name_of(type(other)) and self.payload == json.loads(payloads.encode(other))

    def __hash__(self) -> int:
        return hash(self.message)

    def __repr__(self) -> str:
        event = self.event
        text = f"{self.type}({json.dumps(event)})" if isinstance(event, dict) else repr(event)
        more = {"key": self.key, "deliver_at": self.due_at, **dict(self.message.headers)}
        shown = [f"{name}={value!r}" for name, value in more.items() if value is not None]
        return f"<{text} {' '.join(shown)}>" if shown else text


class OutboxMessages(list[AddedMessage]):
    """The messages of an outbox in their order, which compare with events."""

    def of(self, *types: type | str) -> "OutboxMessages":
        """Those of these event classes, or of these names."""
        names = {each if isinstance(each, str) else name_of(each) for each in types}
        return OutboxMessages(each for each in self if each.type in names)

    def with_key(self, key: str | None) -> "OutboxMessages":
        """Those of one key, in their order."""
        return OutboxMessages(each for each in self if each.key == key)

    def one(self, event: object, **properties: object) -> AddedMessage:
        """The only message that is this event, or of this class or name, with these properties.

        Args:
            event: an event, its class, or its name.
            properties: `key`, `due_at`, `destination`, and others of a `Message`, such as `correlation_id`.

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


def outbox_messages(session: Session | scoped_session[Any]) -> OutboxMessages:
    """The messages that the session's transaction sees in the outbox, and those that it has added and not flushed.

    Nothing is flushed. `assert outbox_messages(session) == [OrderConfirmed(1, total)]` compares their events.
    """
    plain = session_of(session, "outbox_messages", "")
    columns = [outbox.c[name] for name in (*COLUMNS, *_ORDER)]
    with plain.no_autoflush:
        rows = plain.execute(select(*columns).order_by(outbox.c.position)).all()
    messages = [AddedMessage(from_row(row[: len(COLUMNS)]), *row[len(COLUMNS) :]) for row in rows]
    drafts = pending_drafts(plain)
    messages += [AddedMessage(draft.message, draft.row["due_at"], draft.row["destination"]) for draft in drafts]
    return OutboxMessages(messages)


def assert_round_trips(event: object) -> None:
    """Assert that a consumer reads this event back as it is. Classes are checked anyway; this is for their values.

    Raises:
        AssertionError: it is decoded to another value, such as a UUID in a field of type `Any`, which becomes text.
        EncodeError, DecodeError: it cannot be encoded, or its class refuses its own payload.
    """
    decoded = payloads.decode(type(event), payloads.encode(event))
    if decoded != event:
        raise AssertionError(f"{event!r} comes back as {decoded!r}")


def message_of(event: object, *, id: str | None = None, **properties: Any) -> Message:  # noqa: A002 - a field's name
    """A message with this event, as a consumer gets it.

    Args:
        event: an instance of an `@event` class.
        id: a new one by default.
        properties: further fields of `Message`, such as `key`, `headers` and `correlation_id`.

    Raises:
        EncodeError: it cannot be encoded.
    """
    declaration = declaration_of_instance(event)
    known: dict[str, Any] = {"type": declaration.name, "version": declaration.version}
    return Message(id=id or ids.new(), payload=payloads.encode(event), **(known | properties))


def message_for(handler: Handler, event: object, **properties: Any) -> Message:
    """A message with this event, for a handler of its type.

    Raises:
        ConfigurationError: the handler handles other types.
    """
    message = event if isinstance(event, Message) else message_of(event, **properties)
    if message.type not in handler.message_types:
        handled = ", ".join(map(repr, handler.message_types))
        raise ConfigurationError(f"handler {handler.name!r} handles {handled}; the event is {message.type!r}")
    return message


def _property(added: AddedMessage, name: str) -> object:
    value = getattr(added, name) if hasattr(added, name) else getattr(added.message, name)
    return dict(value) if isinstance(value, Mapping) else value


def _classes(name: str) -> list[type]:
    """The event classes of this name that modules have."""
    classes: list[type] = []
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if isinstance(getattr(module, "__dict__", None), dict) else ():
            if isinstance(value, type) and is_event(value) and name_of(value) == name and value not in classes:
                classes.append(value)
    return classes
