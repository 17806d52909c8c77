"""What middleware must not do: it fails the message, and can hide nothing."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Reject, Retry, TransactionRequired, inbox, inbox_handler, tables
from outboxkit.inbox import AsyncCall, Call, Context
from tests.unit.inbox.middlewares import ASYNC, KINDS, PLAIN, book_of, deliver, told
from tests.unit.shop import OrderConfirmed, count, effects, message


def never(call: Call, context: Context[Session]) -> None: ...


async def never_async(call: AsyncCall, context: Context[AsyncSession]) -> None: ...


async def not_awaited(call: AsyncCall, context: Context[AsyncSession]) -> None:
    call()


def twice(call: Call, context: Context[Session]) -> None:
    call()
    call()


async def twice_async(call: AsyncCall, context: Context[AsyncSession]) -> None:
    await call()
    await call()


async def twice_at_once(call: AsyncCall, context: Context[AsyncSession]) -> None:
    await asyncio.gather(call(), call(), return_exceptions=True)


MISUSED = {
    never: r"never has returned without a call of `call\(\)`, so that the message is not handled",
    never_async: r"never_async has returned without a call of `await call\(\)`",
    not_awaited: r"not_awaited has returned without awaiting `call\(\)`",
    twice: "twice has called `call` twice",
    twice_async: "twice_async has called `call` twice",
    twice_at_once: "twice_at_once has called `call` twice",
}


@pytest.mark.parametrize("middleware", MISUSED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("outer", [PLAIN, ASYNC, None])
async def test_a_handler_is_called_once_or_the_message_has_failed(
    async_engine: AsyncEngine, database_url: str, middleware: Any, outer: str | None
):
    around = [] if outer is None else [told("outer", outer)]
    with pytest.raises(ConfigurationError, match=MISUSED[middleware]):
        await deliver(async_engine, book_of(ASYNC, *around, middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@pytest.mark.parametrize("middleware", [never, twice], ids=lambda each: each.__name__)
def test_so_is_a_plain_one(engine: Engine, database_url: str, middleware: Any):
    with pytest.raises(ConfigurationError, match=MISUSED[middleware]), Session(engine) as session, session.begin():
        inbox.run_once(session, message(), book_of(PLAIN, middleware))
    assert count(database_url, effects) == 0


def swallows(call: Call, context: Context[Session]) -> None:
    try:
        call()
    except BaseException:  # noqa: BLE001 - the mistake
        return


async def swallows_async(call: AsyncCall, context: Context[AsyncSession]) -> None:
    try:
        await call()
    except BaseException:  # noqa: BLE001 - the mistake
        return


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
    assert f"swallows{'_async' * (kind == ASYNC)} has swallowed this error" in "".join(raised.value.__notes__)
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


def translates(call: Call, context: Context[Session]) -> None:
    try:
        call()
    except ZeroDivisionError as error:
        raise Reject("cannot be divided") from error


def raises(call: Call, context: Context[Session]) -> None:
    raise Retry("not today", after=60)


def raises_afterwards(call: Call, context: Context[Session]) -> None:
    call()
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


def commits(call: Call, context: Context[Session]) -> None:
    call()
    context.session.commit()


async def commits_async(call: AsyncCall, context: Context[AsyncSession]) -> None:
    await context.session.commit()
    await call()


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
