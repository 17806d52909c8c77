"""One call of a handler, sync or async: limited by its timeout, in a transaction that it cannot end.

The guard of that transaction: until it is lifted the database refuses each COMMIT, in whatever words. The insert of the
inbox row sets it, the trigger `outboxkit_guard` refuses. It can be lifted in the transaction of that row alone: after a
ROLLBACK that is an error. A consumer's own connections lift it in the round trip of the COMMIT, and reset there what a
handler has left in its session.
"""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from time import perf_counter
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from outboxkit import statements, tables
from outboxkit.database import silence, transaction
from outboxkit.database.session_settings import GuardedEnd
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_session, await_, greenlet_spawn
from outboxkit.database.transaction import HandlerSession
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.errors.sqlstates import ABORTED, NO_END, sqlstate_of
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.middleware import Context, entered
from outboxkit.message import Message, Origin, handling
from outboxkit.statements.dialects import has_one_writer, is_server

_ENDED, _ABORTED = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR, as psycopg and psycopg2 report them."""


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


@contextmanager
def guarded(session: Session, connection: Connection, handler: str) -> Iterator[None]:
    """Keep the block, a handler's work, from ending the transaction. Errors that the block raises pass unchanged.

    Raises:
        TransactionRequired: it committed, which is prevented, or rolled back. Or the database aborted the transaction
            after an error that the handler caught.
    """
    begun, root = session.get_transaction(), connection.get_transaction()
    try:
        with transaction.forbidden_commit(session, ended(handler)):
            yield
    except Exception as error:
        if sqlstate_of(error) == NO_END:  # the guard's
            raise TransactionRequired(ended(handler)) from error
        transaction.refuse_end(error, f"handler {handler!r}")
        raise
    if session.get_transaction() is not begun or connection.get_transaction() is not root:
        raise TransactionRequired(ended(handler))
    status = _status(connection) if is_server(connection.dialect.name) else None
    if status == _ENDED:
        raise TransactionRequired(ended(handler))
    if status == _ABORTED:
        raise TransactionRequired(
            f"handler {handler!r} caught a database error and went on, but the database has aborted the "
            "transaction, and its COMMIT would be a rollback. Put statements that may fail into session.begin_nested()"
        )


def ended(handler: str) -> str:
    """The text of the error for a handler that ended the transaction."""
    return (
        f"handler {handler!r} ended the transaction that holds its inbox row, by a commit, a rollback, or a flush that "
        "failed. Leave commit and rollback to the caller; session.begin_nested() is there for work that may fail alone"
    )


def _status(connection: Connection) -> int | None:
    """The transaction's status as the driver knows it. Asyncpg does not know of an abort, so the server is asked."""
    driver_connection: Any = connection.connection.driver_connection
    status: int | None = getattr(getattr(driver_connection, "info", None), "transaction_status", None)
    if status is not None:
        return status
    is_open = getattr(driver_connection, "is_in_transaction", None)
    if is_open is not None and not is_open():
        return _ENDED
    try:
        connection.execute(select(1))
    except DBAPIError as error:
        if sqlstate_of(error) != ABORTED:
            raise
        return _ABORTED
    return None


_HELD = "outboxkit.held"
LONG = 0.1
"""Seconds: from here on a handler's duration is recorded. For quicker ones it is not worth a round trip."""
LIMIT = "outboxkit.limit"
"""A key in the `info` of a session of a thread: the function that stands for `_limited`."""


def call(
    handler: Handler,
    session: Session,
    connection: Connection,
    event: object,
    message: Message,
    *,
    attempt: int,
    installation: str,
    in_batch: bool = False,
) -> int | None:
    """Run the handler for attempt `attempt` of `message`, then flush the session. A batch has its own task and flush.

    Messages that it adds have ids that follow from `message`, its own name and the `installation` of the tables.

    Returns:
        The handler's duration in milliseconds; None if it was shorter than `LONG`.

    Raises:
        TimeoutError: it took longer than its timeout.
        TransactionRequired: it ended the transaction.
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable.
    """
    started, driver = perf_counter(), connection.connection.driver_connection
    file = (connection.engine.url.database or ":memory:") if has_one_writer(connection.dialect.name) else None
    with (
        handling(message, handler=handler.name, database=file, origin=Origin(session, installation)),
        guarded(session, connection, handler.name),
        session.info.get(LIMIT, _limited)(handler, connection),
        silence.lent(driver),
    ):
        run = partial(invoke, handler, session, event, message, attempt)
        if in_batch:
            run()
        else:
            in_own_task(session, run)
        if getattr(driver, "is_held", False):
            raise RuntimeError(
                f"handler {handler.name!r} left a block of the driver open, such as a COPY's: leave it in the handler, "
                "by `async with`"
            )
        if not in_batch:
            session.flush()
    seconds = perf_counter() - started
    return round(seconds * 1000) if seconds >= LONG else None


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
                traceback.clear_frames(error.__traceback__)
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
    if handler.parameters:
        _check_values(handler)
    if not handler.middleware:
        _run(handler, session if proxy is None else proxy, event, message)
        return
    context = Context(session, event, message, handler.name, attempt, handler.resources)
    with entered(handler.middleware, context, proxy):
        _run(handler, session if proxy is None else proxy, event, message)


def in_own_task(session: Session, run: Callable[[], None]) -> None:
    """Run handlers in a task of their own, unless they have a thread.

    They may keep that task and cancel it at any time. After its end this reaches neither the commit nor the ack.
    """
    if async_session(session) is None:
        run()
    else:
        await_(asyncio.create_task(greenlet_spawn(run)))


def _run(handler: Handler, session: Session | AsyncSession, event: object, message: Message) -> None:
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


def _check_values(handler: Handler) -> None:
    missing = [each.name for each in handler.parameters if each.is_required and each.name not in handler.values]
    if missing:
        raise ConfigurationError(
            f"handler {handler.name!r} needs a value for its parameter {missing[0]!r}: give the consumer a Wiring, or "
            "call the handler that Wiring(...).prepare returns"
        )


def _refuse_generator(handler: Handler, result: object) -> None:
    """Refuse a handler that is a generator: none of its code has run when it returns."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"handler {handler.name!r} returned a generator, none of whose code has run: remove its yield, or the "
            "decorator that makes it a generator"
        )


@contextmanager
def held(session: Session, connection: Connection, transaction: str | None, text: str) -> Iterator[None]:
    """Lift the guard at the end of the block, or at the COMMIT. A block in another one leaves that to the outer one.

    The transaction's number came with the inbox row; it is None on SQLite, which has no guard.

    Raises:
        TransactionRequired: the block has ended the transaction; with this text.
    """
    root = connection.get_transaction()
    if transaction is None or connection.info.get(_HELD) is root:
        yield
        return
    driver: Any = connection.connection.driver_connection
    is_ours = isinstance(session, HandlerSession) and hasattr(driver, "ending")
    before = driver.ending if is_ours else None
    if is_ours and before is None:
        driver.ending = GuardedEnd("", lambda error: error)
    connection.info[_HELD] = root
    try:
        yield
    except (Exception, asyncio.CancelledError):
        if is_ours:  # a handler's own ROLLBACK at the driver has taken it, and the session is reset by the last one
            driver.ending = GuardedEnd("", lambda error: error)
        raise
    finally:
        if not (connection.closed or connection.invalidated):
            del connection.info[_HELD]
    if is_ours:
        driver.ending = GuardedEnd(_lift().replace(":transaction", f"'{transaction}'"), _refusal(text))
        return
    try:
        connection.execute(statements.inbox.lift_guard(), {"transaction": transaction})
    except DBAPIError as error:
        raise _refusal(text)(error) from error


@cache
def _lift() -> str:
    """The statement as SQL: to compile it each time would cost more than to send it."""
    return str(statements.inbox.lift_guard())


@cache
def _refusal(text: str) -> Callable[[Exception], Exception]:
    """Turns the error of a guard that cannot be lifted to one with this text."""

    def refusal(error: Exception) -> Exception:
        is_refused = statements.inbox.ENDED in str(getattr(error, "orig", error))
        return TransactionRequired(text) if is_refused else error

    return refusal
