"""One call of a handler: for how long it may run, and how long it took."""

import asyncio
import time

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, inbox, inbox_handler, tables
from tests.unit.shop import OrderConfirmed, count, effects, message

ORDER = message()
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)"
LONG_QUERY = text(f"{NUMBERS} SELECT max(i) FROM n")
TIMED_OUT = "handler 'Slow' took longer than 0.05 s and was cancelled"


@inbox_handler("Slow", timeout=0.05)
async def sleeps(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what="begun"))
    await asyncio.Event().wait()


@inbox_handler("Slow", timeout=0.05)
async def asks(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(LONG_QUERY)


@inbox_handler("Slow", timeout=0.05)
def asks_in_sync(session: Session, event: OrderConfirmed) -> None:
    session.execute(LONG_QUERY)


@inbox_handler("Slow", timeout=0.05)
async def goes_on(session: AsyncSession, event: OrderConfirmed) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await session.execute(insert(effects).values(what="all the same"))


@inbox_handler("Slow", timeout=0.05)
async def translates(session: AsyncSession, event: OrderConfirmed) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError from None


@inbox_handler("Quick", timeout=60)
async def quick(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what="quick"))


async def run(engine: AsyncEngine, handler: object, id_: str = "m-1") -> Outcome:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_once, message(id=id_), handler)


@pytest.mark.parametrize("handler", [sleeps, asks, asks_in_sync, goes_on, translates], ids=lambda found: found.__name__)
async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(
    async_engine: AsyncEngine, database_url: str, handler: object
):
    with pytest.raises(TimeoutError, match=TIMED_OUT) as raised:
        await run(async_engine, handler)
    assert raised.value.__cause__ is not None or handler is goes_on, "where it was cancelled"
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0
    assert asyncio.current_task().cancelling() == 0
    assert await run(async_engine, quick) is Outcome.PROCESSED


async def test_a_cancellation_from_outside_is_no_timeout(async_engine: AsyncEngine, database_url: str):
    running = asyncio.Event()

    @inbox_handler("Waits", timeout=3600)
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        running.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run(async_engine, waits))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count(database_url, tables.inbox) == 0
    assert await run(async_engine, quick) is Outcome.PROCESSED


async def test_a_cancellation_from_outside_goes_before_the_timeout(async_engine: AsyncEngine):
    @inbox_handler("Both", timeout=0.05)
    async def cancelled_twice(session: AsyncSession, event: OrderConfirmed) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(run(async_engine, cancelled_twice))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_was_cancelled_before_still_tells_a_timeout(async_engine: AsyncEngine):
    """A task may be asked to stop, finish its work first, and meet a handler that hangs."""

    async def stubborn() -> Outcome:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await run(async_engine, sleeps)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(TimeoutError, match=TIMED_OUT):
        await task


def test_in_a_sync_session_there_is_no_timeout(engine: Engine, database_url: str):
    @inbox_handler("Blocks", timeout=0.01)
    def blocks(session: Session, event: OrderConfirmed) -> None:
        time.sleep(0.02)

    with Session(engine) as session, session.begin():
        assert inbox.run_once(session, ORDER, blocks) is Outcome.PROCESSED
