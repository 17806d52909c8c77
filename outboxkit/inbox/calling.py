"""One call of a handler: in the colour that it has, for as long as it may run."""

import asyncio
import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.orm import Session
from sqlalchemy.util import await_

from outboxkit.errors import ConfigurationError
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.transaction import guarded
from outboxkit.inbox.watched import check_awaited, close_all, watched
from outboxkit.message import Message, handling

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
