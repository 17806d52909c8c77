"""One call of a handler, sync or async: limited by its timeout, in a transaction that it cannot end."""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from time import perf_counter
from typing import Any, cast

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only

from outboxkit import tables, transaction
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.inbox.handlers import Handler
from outboxkit.message import Message, handling
from outboxkit.sqlstates import ABORTED, sqlstate_of
from outboxkit.statements.dialects import has_one_writer, is_server

SessionCalls = list[tuple[str, Coroutine[Any, Any, Any]]]


def watched(session: AsyncSession) -> tuple[AsyncSession, SessionCalls]:
    """A twin of the session that records the coroutines its methods return, and that record.

    The twin shares all state, so that each object stands for the other. Not recorded: calls through a connection of the
    session, and the application's own coroutines.
    """
    twin = object.__new__(_recording_class(cast("Hashable", type(session))))
    twin.__dict__ = session.__dict__
    calls: SessionCalls = []
    twin._calls = calls  # type: ignore[attr-defined]
    return twin, calls


def check_awaited(calls: SessionCalls, handler: str) -> None:
    """Make sure that every recorded call of the session was awaited.

    Raises:
        ConfigurationError: one was not, so it did nothing.
    """
    forgotten = [name for name, coroutine in calls if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED]
    close_all(calls)
    if forgotten:
        raise ConfigurationError(
            f"handler {handler!r} did not await session.{forgotten[0]}(...), so that nothing of it was done: "
            f"write `await session.{forgotten[0]}(...)`"
        )


def close_all(calls: SessionCalls) -> None:
    """Close the calls that were not awaited, so that a task that the handler left behind cannot begin them."""
    for _, coroutine in calls:
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()


@cache
def _recording_class(cls: Hashable) -> type[AsyncSession]:
    """A subclass whose coroutine methods record each call."""
    session = cast("type[AsyncSession]", cls)
    attributes = {name: inspect.getattr_static(session, name) for name in dir(session) if not name.startswith("_")}
    coroutines = {name: each for name, each in attributes.items() if inspect.iscoroutinefunction(each)}
    methods = {name: _recording(name, method) for name, method in coroutines.items()}
    return type(session.__name__, (session,), {"__slots__": ("_calls",), "__module__": session.__module__, **methods})


def _recording(name: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    def record(self: Any, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        calls: SessionCalls = self._calls
        while calls and inspect.getcoroutinestate(calls[-1][1]) != inspect.CORO_CREATED:
            calls.pop()
        coroutine = method(self, *arguments, **options)
        calls.append((name, coroutine))
        return coroutine

    return record


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
        TransactionRequired: it committed, which is prevented, or rolled back; or the database aborted the transaction
            after an error that the handler caught.
    """
    begun, root = session.get_transaction(), connection.get_transaction()
    outer = transaction.forbid_commit(session, _ended(handler), for_good=True)
    try:
        yield
    finally:
        transaction.allow_commit(session, but=outer)
    if session.get_transaction() is not begun or connection.get_transaction() is not root:
        raise TransactionRequired(_ended(handler))
    status = _status(connection) if is_server(connection.dialect.name) else None
    if status == _ENDED:
        raise TransactionRequired(_ended(handler))
    if status == _ABORTED:
        raise TransactionRequired(
            f"handler {handler!r} caught a database error and went on, but the database has aborted the "
            "transaction, and its COMMIT would be a rollback. Put statements that may fail into session.begin_nested()"
        )


def _ended(handler: str) -> str:
    return (
        f"handler {handler!r} ended the transaction that holds its inbox row. Leave commit and rollback to the "
        "caller; session.begin_nested() is there for work that may fail alone"
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


LONG = 0.1
"""Seconds: from here on a handler's duration is recorded. For quicker ones it is not worth a round trip."""


def call(
    handler: Handler, session: Session, connection: Connection, event: object, message: Message, *, flush: bool
) -> int | None:
    """Run the handler for `message`, and flush the session if `flush` is set.

    Returns:
        The handler's duration in milliseconds; None if it was shorter than `LONG`.

    Raises:
        TimeoutError: it took longer than its timeout.
        TransactionRequired: it ended the transaction.
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable, or it did not
            await a call of its session.
    """
    started = perf_counter()
    file = (connection.engine.url.database or ":memory:") if has_one_writer(connection.dialect.name) else None
    with (
        handling(message, handler=handler.name, database=file),
        guarded(session, connection, handler.name),
        _limited(handler, connection),
    ):
        _invoke(handler, session, event, message)
        if flush:
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
    await_only(deadline.__aenter__())
    try:
        yield
    except BaseException as error:
        with suppress(TimeoutError):
            await_only(deadline.__aexit__(type(error), error, error.__traceback__))
        # A cancellation from elsewhere, such as a stop, is not the handler's fault and is raised unchanged.
        if deadline.expired() and task.cancelling() <= before:
            if has_one_writer(connection.dialect.name):
                # These frames keep the cursor alive, and with it the statement that holds the write lock.
                traceback.clear_frames(error.__traceback__)
            raise TimeoutError(text) from error
        raise
    await_only(deadline.__aexit__(None, None, None))
    if deadline.expired():
        raise TimeoutError(text)


def _invoke(handler: Handler, session: Session, event: object, message: Message) -> None:
    extra = (message,) if handler.takes_message else ()
    if not handler.is_async:
        result = handler.function(session, event, *extra)
        _refuse_generator(handler, result)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigurationError(
                f"handler {handler.name!r} is not an `async def` but returned an awaitable, which is never awaited: "
                "declare it, and its decorators' wrappers, as async def"
            )
        return
    proxy = async_session(session)
    if proxy is None:
        raise ConfigurationError(
            f"handler {handler.name!r} is async and needs an AsyncSession: "
            "await session.run_sync(inbox.run_once, message, handler)"
        )
    twin, calls = watched(proxy)
    try:
        awaitable = handler.function(twin, event, *extra)
        _refuse_generator(handler, awaitable)
        _refuse_generator(handler, await_only(awaitable))
    except BaseException:
        close_all(calls)
        raise
    check_awaited(calls, handler.name)


def _refuse_generator(handler: Handler, result: object) -> None:
    """Refuse a handler that is a generator: none of its code has run when it returns."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"handler {handler.name!r} returned a generator, none of whose code has run: remove its yield, or the "
            "decorator that makes it a generator"
        )
