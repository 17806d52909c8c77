"""`run_once`: the rule behind "each effect happens once", for one message and one handler, and the handler's call."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any
from zlib import crc32

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from outboxkit import statements, tables
from outboxkit.codec import upcasts
from outboxkit.codec.payloads import LARGE, plain_size
from outboxkit.database import transaction
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_session, await_, greenlet_spawn
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.errors.failures import forget_locals
from outboxkit.inbox.handlers import Handler, handler_of, is_required
from outboxkit.inbox.middleware import Context, entered
from outboxkit.message import Message, Origin, handling
from outboxkit.runtime import window
from outboxkit.statements.dialects import has_one_writer
from outboxkit.telemetry import tracing

_OTHER_PAYLOAD = (
    "two messages have the id %r: a duplicate of type %s has another payload than the message that handler %s had. "
    "It is not handled. Leave message_id out, or derive it from what tells the messages apart; `outboxkit reconcile` "
    "counts such ids"
)
_warned: set[str] = set()
"""The handlers of this process that the warning has named."""
LIMIT_OF_THREAD = "outboxkit.limit"
"""A key in the `info` of a session of a thread: the function that stands for `_limited`."""


class Outcome(StrEnum):
    """The outcome of a delivery at one handler."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    RETRIED = "retried"
    DEAD = "dead"
    STALE = "stale"
    IGNORED = "ignored"
    """No handler takes it, and none needs to: of a delivery alone."""


def run_once(
    session: Session | scoped_session[Any],
    message: Message,
    handler: Callable[..., Any] | Handler,
    *,
    attempt: int = 1,
    accepted_at: datetime | None = None,
) -> Outcome:
    """Run `handler` for `message`, unless it has already run: the rule behind "each effect happens once".

    Inserts the inbox row in the session's transaction, then calls the handler with that session, so that both
    commit, or neither does. While another transaction handles the same message, this call waits for its end. The
    caller commits; after an exception it must roll back, or the message counts as handled.

    With an `AsyncSession`, `await session.run_sync(inbox.run_once, message, handler)`; an `async def` handler then
    gets the `AsyncSession`, and a handler's timeout holds. In any other session it does not.

    The caller checks the age of the message first, with `inbox.is_stale`. This call cannot tell whether a message was
    handled that is older than the inbox retention.

    Args:
        session: in a transaction.
        message: the message that arrived.
        handler: a function with `@inbox_handler`, or its `Handler`.
        attempt: the number of the attempt, from 1; stored in the inbox row.
        accepted_at: the time at which an operator accepted a stale message.

    Returns:
        `Outcome.PROCESSED`, or `Outcome.DUPLICATE` if the handler was not called.

    Raises:
        TransactionRequired: the session is in no transaction, or its connection is in autocommit mode. Or the handler
            itself committed or rolled back, or went on after an error that aborted the transaction.
        TimeoutError: the handler took longer than its timeout.
        TypeError: the session is of another kind.
        DecodeError: the payload is not the handler's event; nothing was inserted.
        NewerVersion: the message has a newer version than the handler's event; nothing was inserted.
        ConfigurationError: the function is not a handler, or it is async and the session is not.
    """
    spec = handler if isinstance(handler, Handler) else handler_of(handler)
    session, connection = opened(session, "run_once", "message, handler")
    with tracing.processing(message, spec.name, attempt=attempt) as span:
        outcome = _run(session, connection, spec, message, attempt, accepted_at)
        span.ends_as(outcome)
    return outcome


def _run(
    session: Session,
    connection: Connection,
    handler: Handler,
    message: Message,
    attempt: int,
    accepted_at: datetime | None,
) -> Outcome:
    event = _event_within(session, handler, message)
    row = {
        "handler": handler.name,
        "message_id": message.id,
        "type": message.type,
        "attempts": attempt,
        "payload_crc": payload_crc(message.payload),
        "made": window.message_time(message.id, message.created_at, accepted_at),
    }
    statement = statements.inbox.record_processed(connection.dialect.name, guarded=True)
    record = transaction.first_row(session, connection, statement, row)
    if record is None:
        warn_of_other_payloads(connection, [(handler.name, message)])
        return Outcome.DUPLICATE
    installation, number = record[1], record[2] if len(record) > 2 else None
    with transaction.guard_until_end(session, connection, number, transaction.ended(handler.name)):
        call(handler, session, connection, event, message, attempt=attempt, installation=installation)
    return Outcome.PROCESSED


async def event_for(handler: Handler, message: Message) -> object:
    """The event that the handler gets. A large one is decoded in a thread, so that the event loop goes on meanwhile.

    Raises:
        DecodeError, NewerVersion: as `upcasts.event_of`.
    """
    if not _is_large(message):
        return upcasts.event_of(handler.event_type, message)
    return await asyncio.to_thread(upcasts.event_of, handler.event_type, message)


def _event_within(session: Session, handler: Handler, message: Message) -> object:
    """The event that the handler gets in this session. It is decoded here if the session is not an asynchronous one."""
    if async_session(session) is None or not _is_large(message):
        return upcasts.event_of(handler.event_type, message)
    return await_(event_for(handler, message))


def _is_large(message: Message) -> bool:
    return plain_size(message.payload, message.content_encoding, limit=LARGE) > LARGE


def payload_crc(payload: bytes) -> int:
    """The CRC-32 of a payload, as the signed number that a column of four bytes holds."""
    return (crc32(payload) ^ 0x8000_0000) - 0x8000_0000


def warn_of_other_payloads(connection: Connection, duplicates: Sequence[tuple[str, Message]]) -> None:
    """Log a warning if a handler's duplicate has another payload than the message that it handled under this id.

    It costs a statement for duplicates, and comes once for each handler of a process; `outboxkit reconcile` counts all.
    """
    unwarned = [(handler, message) for handler, message in duplicates if handler not in _warned]
    if not unwarned:
        return
    names = {"handlers": sorted({name for name, _ in unwarned}), "ids": sorted({each.id for _, each in unwarned})}
    rows = connection.execute(statements.inbox.payload_crcs(connection.dialect.name), names)
    crcs = {(handler, message_id): crc for handler, message_id, crc in rows}
    for handler, message in unwarned:
        if handler not in _warned and crcs.get((handler, message.id)) not in (None, payload_crc(message.payload)):
            _warned.add(handler)
            logging.getLogger("outboxkit").warning(_OTHER_PAYLOAD, message.id, message.type, handler)


def recall(session: Session, handlers: Iterable[str], messages: Iterable[Message]) -> set[tuple[str, str, int]]:
    """What these handlers have handled of these messages: the handler, the id and the CRC of the payload."""
    names = {"handlers": sorted(handlers), "ids": sorted({each.id for each in messages})}
    rows = session.execute(statements.inbox.payload_crcs(session.get_bind().dialect.name), names)
    return {(handler, message_id, crc) for handler, message_id, crc in rows}


def opened(session: Session | scoped_session[Any], caller: str, arguments: str) -> tuple[Session, Connection]:
    """The session itself and its connection, in a transaction that can be rolled back.

    Raises:
        TransactionRequired: the session is in no transaction, or its connection in autocommit mode.
        TypeError: the session is of another kind.
    """
    session = transaction.session_of(session, f"inbox.{caller}", arguments)
    if not session.in_transaction():
        raise TransactionRequired(
            f"{caller} was called outside a transaction: its inbox row must commit or roll back together with the "
            "handler's work. Call it inside `with session.begin():`"
        )
    why = "the inbox row would stay when the handler fails, and the message would be lost"
    return session, transaction.connection_of(session, why, clause=tables.inbox)


def call(
    handler: Handler,
    session: Session,
    connection: Connection,
    event: object,
    message: Message,
    *,
    attempt: int,
    installation: str,
    leave: Callable[[], None] | None = None,
) -> None:
    """Run the handler for attempt `attempt` of `message`, then `leave` it: by default, flush the session.

    Messages that it or its flush adds have ids that follow from `message`, its own name and the `installation` of the
    tables.

    Raises:
        TimeoutError: it took longer than its timeout.
        TransactionRequired: it ended the transaction.
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable.
    """
    driver = connection.connection.driver_connection
    work = partial(_work, handler, session, event, message, attempt, driver, leave or session.flush)
    with (
        handling(message, handler=handler.name, origin=Origin(session, installation)),
        transaction.guarded(session, connection, handler.name),
        session.info.get(LIMIT_OF_THREAD, _limited)(handler, connection),
    ):
        # In a context of its own, and in the event loop in a task of its own. The handler may keep that task and cancel
        # it at any time: after its end this reaches neither the commit nor the ack.
        if async_session(session) is None:
            copy_context().run(work)
        else:
            await_(asyncio.create_task(greenlet_spawn(work)))


def _work(
    handler: Handler,
    session: Session,
    event: object,
    message: Message,
    attempt: int,
    driver: object,
    leave: Callable[[], None],
) -> None:
    """The handler's part of the transaction. No closure: an error would keep one, and with it the event."""
    try:
        invoke(handler, session, event, message, attempt)
    except (SystemExit, KeyboardInterrupt) as error:  # they end the process
        error.add_note(f"in handler {handler.name!r}, with message {message.id!r} of type {message.type!r}")
        raise
    if getattr(driver, "is_in_block", False):
        raise RuntimeError(
            f"handler {handler.name!r} left a block of the driver open, such as a COPY's or a pipeline: leave it "
            "in the handler, by `with` or `async with`"
        )
    leave()


@contextmanager
def _limited(handler: Handler, connection: Connection) -> Iterator[None]:
    """Cancel the block after the handler's timeout: its current await gets a CancelledError, and this raises.

    In an asynchronous session it also limits a plain `def`: its database calls are awaits of the same task.
    """
    task = asyncio.current_task() if handler.timeout and connection.dialect.is_async else None
    if task is None or handler.timeout is None:
        yield
        return
    seconds = handler.timeout.total_seconds()
    text = f"handler {handler.name!r} took longer than {seconds:g} s and was cancelled"
    before = task.cancelling()
    deadline = asyncio.timeout(seconds)
    await_(deadline.__aenter__())
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        with suppress(TimeoutError):
            await_(deadline.__aexit__(type(error), error, error.__traceback__))
        # A cancellation from elsewhere, such as a stop, is not the handler's fault and is raised unchanged.
        if deadline.expired() and task.cancelling() <= before:
            if has_one_writer(connection.dialect.name):
                # These frames keep the cursor alive, and with it the statement that holds the write lock.
                forget_locals(error)
            raise TimeoutError(text) from error
        raise
    await_(deadline.__aexit__(None, None, None))
    if deadline.expired():
        raise TimeoutError(text)


def invoke(handler: Handler, session: Session, event: object, message: Message, attempt: int) -> None:
    """Call the handler, inside its middleware and with the values of its parameters.

    Raises:
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable, or nothing
            gives one of its parameters.
    """
    proxy = async_session(session) if handler.is_async else None
    if handler.is_async and proxy is None:
        raise ConfigurationError(
            f"handler {handler.name!r} is async and needs an AsyncSession: "
            "await session.run_sync(inbox.run_once, message, handler)"
        )
    missing = [each.name for each in handler.parameters if is_required(each) and each.name not in handler.values]
    if missing:
        raise ConfigurationError(
            f"handler {handler.name!r} needs a value for its parameter {missing[0]!r}: give the consumer a Wiring, or "
            "call the handler that Wiring(...).prepare returns"
        )
    layers: AbstractContextManager[None] = nullcontext()
    if handler.middleware:
        context = Context(session, event, message, handler.name, attempt, handler.resources)
        layers = entered(handler.middleware, context, proxy)
    with layers:
        _apply(handler, session if proxy is None else proxy, event, message)


def _apply(handler: Handler, session: Session | AsyncSession, event: object, message: Message) -> None:
    extra = (message,) if handler.takes_message else ()
    result = handler.function(session, event, *extra, **handler.values)
    if handler.is_async:
        _refuse_generator(handler, result)
        result = await_(result)
    if result is None:
        return
    _refuse_generator(handler, result)
    if inspect.iscoroutine(result) or (inspect.isawaitable(result) and not handler.is_async):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            f"handler {handler.name!r} returned an awaitable, which is never awaited: declare it, and its decorators' "
            "wrappers, as async def, and write `return await ...`"
        )


def _refuse_generator(handler: Handler, result: object) -> None:
    """Refuse a handler that is a generator: none of its code has run when it returns."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"handler {handler.name!r} returned a generator, none of whose code has run: remove its yield, or the "
            "decorator that makes it a generator"
        )
