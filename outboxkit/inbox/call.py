"""One call of a handler: sync or async, for as long as it may run, in a transaction that it cannot end."""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from time import perf_counter
from typing import Any, cast

from sqlalchemy import Connection, select
from sqlalchemy.ext.asyncio import AsyncSession, async_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_

from outboxkit import tables, transaction
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.inbox.handlers import Handler
from outboxkit.message import Message, handling

Asked = list[tuple[str, Coroutine[Any, Any, Any]]]


def watched(session: AsyncSession) -> tuple[AsyncSession, Asked]:
    """The same session in another object, and what is asked of it there and not awaited yet.

    Everything but the methods is shared, so that each object stands for the other. What is sent through a connection of
    the session is not seen, nor is a coroutine of the application's own.
    """
    made = object.__new__(_class_of(cast("Hashable", type(session))))
    made.__dict__ = session.__dict__
    asked: Asked = []
    made._asked = asked  # type: ignore[attr-defined]
    return made, asked


def check_awaited(asked: Asked, handler: str) -> None:
    """Make sure that everything that was asked of the session has begun.

    Raises:
        ConfigurationError: something was not: what it was to do was not done.
    """
    forgotten = [name for name, coroutine in asked if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED]
    close_all(asked)
    if forgotten:
        raise ConfigurationError(
            f"handler {handler!r} did not await session.{forgotten[0]}(...), so that nothing of it was done: "
            f"write `await session.{forgotten[0]}(...)`"
        )


def close_all(asked: Asked) -> None:
    """Have nothing of it begin any more, not even in a task that the handler has left behind."""
    for _, coroutine in asked:
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()


@cache
def _class_of(given: Hashable) -> type[AsyncSession]:
    """A subclass whose coroutine methods are noted when they are called."""
    kind = cast("type[AsyncSession]", given)
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    methods = {name: _noted(name, method) for name, method in found.items() if inspect.iscoroutinefunction(method)}
    return type(kind.__name__, (kind,), {"__slots__": ("_asked",), "__module__": kind.__module__, **methods})


def _noted(name: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    def ask(self: Any, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        asked: Asked = self._asked
        while asked and inspect.getcoroutinestate(asked[-1][1]) != inspect.CORO_CREATED:
            asked.pop()
        coroutine = method(self, *arguments, **options)
        asked.append((name, coroutine))
        return coroutine

    return ask


_ENDED, _ABORTED = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR, which psycopg and psycopg2 pass on."""


def opened(session: Session | scoped_session[Any], caller: str, arguments: str) -> tuple[Session, Connection]:
    """The session itself, and its connection, in a transaction that can be rolled back.

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
    return session, transaction.connection_of(session, tables.inbox, why)


@contextmanager
def guarded(session: Session, connection: Connection, handler: str) -> Iterator[None]:
    """Refuse that the block, a handler's work, ends the transaction; what it raises itself is left alone.

    Raises:
        TransactionRequired: it committed, which is prevented, or rolled back, or the database has given up the
            transaction at an error that the handler caught.
    """
    begun, root = session.get_transaction(), connection.get_transaction()
    outer = transaction.forbid_commit(session, _ended(handler), for_good=True)
    try:
        yield
    finally:
        transaction.allow_commit(session, but=outer)
    if session.get_transaction() is not begun or connection.get_transaction() is not root:
        raise TransactionRequired(_ended(handler))
    status = _status(connection) if connection.dialect.name == "postgresql" else None
    if status == _ENDED:
        raise TransactionRequired(_ended(handler))
    if status == _ABORTED:
        raise TransactionRequired(
            f"handler {handler!r} caught an error of the database and went on, but the database has given up the "
            "transaction, and its COMMIT would be a rollback. Put what may fail into session.begin_nested()"
        )


def _ended(handler: str) -> str:
    return (
        f"handler {handler!r} ended the transaction that holds its inbox row. Leave commit and rollback to the "
        "caller; session.begin_nested() is there for work that may fail alone"
    )


def _status(connection: Connection) -> int | None:
    driver_connection: Any = connection.connection.driver_connection
    status = getattr(getattr(driver_connection, "info", None), "transaction_status", None)
    if status is None:
        connection.execute(select(1))  # a driver that does not tell: the database does, by an error
    return status


LONG = 0.1
"""Seconds: how long a handler took is written down from here on. Quicker ones are not worth a round trip."""


def call(
    handler: Handler, session: Session, connection: Connection, event: object, message: Message, *, flush: bool
) -> int | None:
    """Run the handler as the one that handles `message`, and flush what it left if that is wanted.

    Returns:
        How many milliseconds it took, where that was long.

    Raises:
        TimeoutError: it took longer than its timeout.
        TransactionRequired: it ended the transaction.
        ConfigurationError: it is async and the session is not, it returned an awaitable without being async, or it did
            not await what it asked of its session.
    """
    started = perf_counter()
    file = (connection.engine.url.database or ":memory:") if connection.dialect.name == "sqlite" else None
    with (
        handling(message, handler=handler.name, database=file),
        guarded(session, connection, handler.name),
        _limited(handler, connection),
    ):
        _invoke(handler, session, event, message)
        if flush:
            session.flush()
    took = perf_counter() - started
    return round(took * 1000) if took >= LONG else None


@contextmanager
def _limited(handler: Handler, connection: Connection) -> Iterator[None]:
    """Cancel the block after the handler's timeout: it gets a CancelledError where it waits, and this raises.

    Works in the greenlet of an asynchronous session, whatever the handler's colour: there every wait, also one for the
    database in a `def`, is an await of the same task.
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
    except BaseException as error:
        with suppress(TimeoutError):
            await_(deadline.__aexit__(type(error), error, error.__traceback__))
        # A cancellation from elsewhere, such as a stop, is not the handler's fault and goes on.
        if deadline.expired() and task.cancelling() <= before:
            if connection.dialect.name == "sqlite":
                # The cursor lives in those frames, and with it the statement that holds the write lock.
                traceback.clear_frames(error.__traceback__)
            raise TimeoutError(text) from error
        raise
    await_(deadline.__aexit__(None, None, None))
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
                f"handler {handler.name!r} is no `async def` but returned an awaitable, which nobody would await: "
                "declare it, and what decorates it, as async def"
            )
        return
    proxy = async_session(session)
    if proxy is None:
        raise ConfigurationError(
            f"handler {handler.name!r} is async and needs an AsyncSession: "
            "await session.run_sync(inbox.run_once, message, handler)"
        )
    own, asked = watched(proxy)
    try:
        awaitable = handler.function(own, event, *extra)
        _refuse_generator(handler, awaitable)
        _refuse_generator(handler, await_(awaitable))
    except BaseException:
        close_all(asked)
        raise
    check_awaited(asked, handler.name)


def _refuse_generator(handler: Handler, result: object) -> None:
    """Nothing of a function with `yield` in it has run when it returns, and nobody would go on with it."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"handler {handler.name!r} returned a generator, of which nothing has run: leave out its yield, or what "
            "makes a generator of it"
        )
