"""What middleware must not do: it fails the message, and can hide nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Reject, Retry, TransactionRequired, inbox_handler, tables
from outboxkit.inbox import Context
from tests.unit.inbox.middlewares import ASYNC, KINDS, PLAIN, book_of, deliver, told
from tests.unit.shop import OrderConfirmed, count, effects


def returns_nothing(context: Context[Session]) -> None: ...


@contextmanager
def yields_never(context: Context[Session]) -> Iterator[None]:
    return
    yield


@contextmanager
def yields_twice(context: Context[Session]) -> Iterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    ("middleware", "error", "text"),
    [
        (returns_nothing, ConfigurationError, "returns_nothing returned NoneType, which is not a context manager"),
        (yields_never, RuntimeError, "didn't yield"),
        (yields_twice, RuntimeError, "didn't stop"),
    ],
)
@pytest.mark.parametrize("kind", [PLAIN, ASYNC])
async def test_a_handler_is_called_once_or_the_message_has_failed(
    async_engine: AsyncEngine, database_url: str, middleware: Any, error: type[Exception], text: str, kind: str
):
    with pytest.raises(error, match=text):
        await deliver(async_engine, book_of(kind, told("outer", PLAIN), middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@contextmanager
def swallows(context: Context[Session]) -> Iterator[None]:
    with suppress(BaseException):
        yield


@asynccontextmanager
async def swallows_async(context: Context[AsyncSession]) -> AsyncIterator[None]:
    with suppress(BaseException):
        yield


@pytest.mark.parametrize(
    "error", [Retry("later", after=5), Reject("no"), ZeroDivisionError("by 0"), asyncio.CancelledError()], ids=repr
)
@pytest.mark.parametrize("kinds", KINDS)
async def test_what_a_handler_raises_cannot_be_swallowed(
    async_engine: AsyncEngine, database_url: str, kinds: tuple[str, str], error: BaseException
):
    kind, handler = kinds
    middleware = swallows if kind == PLAIN else swallows_async
    with pytest.raises(type(error)) as raised:
        await deliver(async_engine, book_of(handler, middleware, fails=error))
    assert raised.value is error
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@contextmanager
def translates(context: Context[Session]) -> Iterator[None]:
    try:
        yield
    except ZeroDivisionError as error:
        raise Reject("cannot be divided") from error


@contextmanager
def raises(context: Context[Session]) -> Iterator[None]:
    raise Retry("not today", after=60)
    yield


@contextmanager
def raises_afterwards(context: Context[Session]) -> Iterator[None]:
    yield
    raise Retry("not today", after=60)


@pytest.mark.parametrize(("middleware", "error"), [(translates, Reject), (raises, Retry), (raises_afterwards, Retry)])
@pytest.mark.parametrize("kind", [PLAIN, ASYNC])
async def test_what_it_raises_is_the_failure_of_the_message(
    async_engine: AsyncEngine, database_url: str, middleware: Any, error: type[Exception], kind: str
):
    fails = ZeroDivisionError if middleware is translates else None
    with pytest.raises(error):
        await deliver(async_engine, book_of(kind, told("outer", PLAIN), middleware, fails=fails))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@contextmanager
def commits(context: Context[Session]) -> Iterator[None]:
    yield
    context.session.commit()


@asynccontextmanager
async def commits_async(context: Context[AsyncSession]) -> AsyncIterator[None]:
    await context.session.commit()
    yield


@pytest.mark.parametrize("middleware", [commits, commits_async], ids=lambda each: each.__name__)
async def test_it_cannot_commit(async_engine: AsyncEngine, database_url: str, middleware: Any):
    with pytest.raises(TransactionRequired, match="'Book' ended the transaction"):
        await deliver(async_engine, book_of(ASYNC, middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@pytest.mark.parametrize("middleware", [swallows, swallows_async, told("slow", ASYNC)])
async def test_it_is_inside_the_timeout(async_engine: AsyncEngine, database_url: str, middleware: Any):
    @inbox_handler("Waits", timeout=0.05, middleware=[middleware])
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"handler 'Waits' took longer than 0\.05 s"):
        await deliver(async_engine, waits)
    assert asyncio.current_task().cancelling() == 0
    assert count(database_url, effects) == 0
