"""Handlers run inline, in the session of a test: one message, or all that are due and all that come of them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.orm import Session, scoped_session

from outboxkit import defaults, inbox, statements
from outboxkit.database.sqlalchemy_asyncio import async_session
from outboxkit.database.transaction import session_of
from outboxkit.errors import ConfigurationError
from outboxkit.inbox import Handler, Outcome, handler_of, handlers_in
from outboxkit.inbox.failure import decide
from outboxkit.message import DEFAULT_DESTINATION, Message
from outboxkit.retry import delay_for
from outboxkit.statements.dialects import has_one_writer
from outboxkit.tables import outbox
from outboxkit.testing.messages import AddedMessage, message_for, outbox_messages

MAX_ATTEMPTS = 5
CHAIN = 100
"""A message with so many causes one behind the other is in a circle."""
Handlers = ModuleType | Callable[..., Any] | Handler | Collection[ModuleType | Callable[..., Any] | Handler]


@dataclass(frozen=True, slots=True)
class Handled:
    """One message at one handler.

    Attributes:
        message: the message.
        handler: the handler's name.
        outcome: processed, duplicate, retried or dead.
        attempt: the number of the attempt, from 1.
        error: the error that the handler raised.
        due_at: the time of the next attempt.
    """

    message: Message
    handler: str
    outcome: Outcome
    attempt: int = 1
    error: BaseException | None = None
    due_at: datetime | None = None

    def __repr__(self) -> str:
        text = f"<{self.message.type} at {self.handler}: {self.outcome}"
        text += f" {type(self.error).__name__}({self.error})" if self.error is not None else ""
        return text + (f", again at {self.due_at:%H:%M:%S}>" if self.due_at is not None else ">")


def deliver(
    session: Session | scoped_session[Any], handler: Callable[..., Any] | Handler, event: object, **properties: Any
) -> Outcome:
    """Deliver an event to a handler, in a savepoint of the session's transaction, as a consumer does.

    With an `AsyncSession`: `await session.run_sync(deliver, handler, event)`.

    Args:
        session: the test's own; nothing is committed.
        handler: a function with `@inbox_handler`, or its `Handler`.
        event: the event, or a `Message`. The same `Message` a second time is a duplicate.
        properties: fields of the `Message`, such as `id`, `key` and `headers`.

    Returns:
        `Outcome.PROCESSED`, or `Outcome.DUPLICATE` if the handler was not called.

    Raises:
        Exception: whatever the handler raises, such as `Retry`; nothing of it is left then.
        ConfigurationError: it handles events of other types.
    """
    spec = handler if isinstance(handler, Handler) else handler_of(handler)
    _refuse_async(session, [spec], "deliver, handler, event")
    return _run(_begun(session), message_for(spec, event, **properties), spec, 1)


def deliver_all(
    session: Session | scoped_session[Any],
    handlers: Handlers,
    *,
    now: datetime | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> list[Handled]:
    """Deliver the messages in the outbox that are due, and those that handlers add, until none is left.

    Each handler runs in a savepoint. A message that all its handlers have handled leaves the outbox. One that failed
    waits there for its next attempt, which a later call with a later `now` makes; after `max_attempts` it is dead.
    Messages without a handler, and those of other destinations, stay where they are.

    With an `AsyncSession`: `await session.run_sync(deliver_all, handlers)`.

    Args:
        session: the test's own; nothing is committed.
        handlers: modules, functions and `Handler` objects, or one of them.
        now: the time; messages with a later `deliver_at`, or a later next attempt, are not due.
        max_attempts: for handlers without a rule of their own.

    Returns:
        Each message at each handler, in their order.

    Raises:
        AssertionError: handlers go on causing messages; the text has the circle.
        ConfigurationError: `handlers` has something that is neither a module nor a handler.
    """
    specs = list(specs_of(handlers, "deliver_all"))
    _refuse_async(session, specs, "deliver_all, handlers")
    plain = _begun(session)
    moment = now or datetime.now(UTC)
    done: list[Handled] = []
    causes: dict[str, Message] = {}
    while True:
        plain.flush()
        due = [each for each in outbox_messages(plain) if _is_due(each, moment, specs)]
        if not due:
            return done
        for each in due:
            causes[each.message.id] = each.message
            _refuse_circle(each.message, causes)
            done += _handle(plain, each, specs, moment, max_attempts)


def _refuse_async(session: Session | scoped_session[Any], handlers: Sequence[Handler], call: str) -> None:
    """Refuse `async def` handlers on a session that is not the one inside an `AsyncSession`."""
    names = [handler.name for handler in handlers if handler.is_async]
    if names and isinstance(session, Session) and async_session(session) is None:
        raise ConfigurationError(
            f"handler {names[0]!r} is async and needs an AsyncSession: await session.run_sync({call})"
        )


def _begun(session: Session | scoped_session[Any]) -> Session:
    """The session in a transaction in which savepoints can be set."""
    plain = session_of(session, "deliver", "...")
    connection = plain.connection()
    if has_one_writer(connection.dialect.name):  # its driver begins with a write, and a savepoint is none
        connection.execute(statements.inbox.probe_writable())
    return plain


def _run(session: Session, message: Message, handler: Handler, attempt: int) -> Outcome:
    with session.begin_nested():
        return inbox.run_once(session, message, handler, attempt=attempt)


def _handle(
    session: Session, added: AddedMessage, handlers: Sequence[Handler], now: datetime, max_attempts: int
) -> Iterator[Handled]:
    """Run the handlers of a message, and take it from the outbox or reschedule it."""
    attempt, next_times = added.attempts + 1, []
    for handler in handlers:
        if added.type not in handler.message_types:
            continue
        try:
            outcome = _run(session, added.message, handler, attempt)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its message's failure
            decision = decide(error, handler, attempt=attempt, max_attempts=max_attempts)
            due_at = None
            if decision.outcome is Outcome.RETRIED:
                due_at = now + delay_for(defaults.DELAYS, attempt, decision.after)
                next_times.append(due_at)
            yield Handled(added.message, handler.name, decision.outcome, attempt, error, due_at)
        else:
            yield Handled(added.message, handler.name, outcome, attempt)
    row = outbox.c.position == added.position
    if next_times:
        session.execute(update(outbox).where(row).values(due_at=min(next_times), attempts=attempt))
    else:
        session.execute(delete(outbox).where(row))


def _is_due(added: AddedMessage, now: datetime, handlers: Sequence[Handler]) -> bool:
    has_handler = any(added.type in handler.message_types for handler in handlers)
    return has_handler and added.destination == DEFAULT_DESTINATION and (added.due_at is None or added.due_at <= now)


def _refuse_circle(message: Message, causes: dict[str, Message]) -> None:
    """Refuse a message that is caused by a long chain of messages, each by the one before."""
    types: list[str] = []
    cause: Message | None = message
    while cause is not None:
        types.append(cause.type)
        cause = causes.get(cause.causation_id or "")
    if len(types) > CHAIN:
        circle = types[: types.index(types[0], 1) + 1]
        raise AssertionError(
            f"handlers go on causing messages, {len(types)} one behind the other: {' -> '.join(reversed(circle))}"
        )


def specs_of(handlers: Handlers, caller: str) -> Iterator[Handler]:
    """The handlers in modules, of functions, and that are `Handler` objects.

    Raises:
        ConfigurationError: something else is there.
    """
    each: Any
    if isinstance(handlers, str):
        raise ConfigurationError(
            f"{caller} takes modules and functions; {handlers!r} is a name: import it, and pass it"
        )
    several = isinstance(handlers, Collection) and not isinstance(handlers, ModuleType)
    for each in handlers if several else (handlers,):  # type: ignore[union-attr]
        if isinstance(each, ModuleType):
            yield from handlers_in([each])
        else:
            yield each if isinstance(each, Handler) else handler_of(each)
