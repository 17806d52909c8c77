"""`inbox.run_once` where PostgreSQL has more to say: two at the same time, autocommit, errors, statements that hang."""

import asyncio

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, inbox, inbox_handler, outbox, tables
from tests.support.polling import eventually_async
from tests.unit.shop import OrderConfirmed, message

MESSAGE = message()


@inbox_handler("BillOrder")
async def bill(session: AsyncSession, event: OrderConfirmed) -> None:
    outbox.add(session, event)


@inbox_handler("Hangs", timeout=0.2)
async def hangs(session: AsyncSession, event: OrderConfirmed) -> None:
    await bill(session, event)
    await session.execute(text("SELECT pg_sleep(600)"))


@inbox_handler("HangsToo", timeout=0.2)
def hangs_in_sync(session: Session, event: OrderConfirmed) -> None:
    session.execute(text("SELECT pg_sleep(600)"))


async def run(engine: AsyncEngine, handler: object) -> Outcome:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_once, MESSAGE, handler)


async def committed(engine: AsyncEngine) -> tuple[int, int]:
    """How many rows the inbox and the outbox have."""
    async with AsyncSession(engine) as session:
        inbox_rows = await session.scalar(select(func.count()).select_from(tables.inbox))
        return inbox_rows, await session.scalar(select(func.count()).select_from(tables.outbox))


async def backends(engine: AsyncEngine, condition: str) -> int:
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
    async with engine.connect() as connection:
        return int((await connection.execute(text(asked))).scalar_one())


@pytest.mark.parametrize("first_commits", [True, False])
async def test_at_the_same_time_the_second_waits_for_the_first(async_pg_engine: AsyncEngine, first_commits: bool):
    async with AsyncSession(async_pg_engine) as session:
        await session.begin()
        assert await session.run_sync(inbox.run_once, MESSAGE, bill) is Outcome.PROCESSED
        waiting = asyncio.create_task(run(async_pg_engine, bill))
        await eventually_async(lambda: backends(async_pg_engine, "wait_event = 'transactionid'"))
        assert not waiting.done()
        await (session.commit() if first_commits else session.rollback())
        assert await waiting is (Outcome.DUPLICATE if first_commits else Outcome.PROCESSED)
    assert await committed(async_pg_engine) == (1, 1)


@pytest.mark.parametrize("handler", [hangs, hangs_in_sync])
async def test_a_handler_whose_statement_hangs_is_cancelled_in_the_server_too(
    async_pg_engine: AsyncEngine, handler: object
):
    with pytest.raises(TimeoutError, match=r"handler 'Hangs\w*' took longer than 0.2 s and was cancelled"):
        await run(async_pg_engine, handler)
    assert await backends(async_pg_engine, "query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()") == 0
    assert await backends(async_pg_engine, "state = 'idle in transaction'") == 0
    assert async_pg_engine.pool.checkedout() == 0
    assert await committed(async_pg_engine) == (0, 0)
    assert await run(async_pg_engine, bill) is Outcome.PROCESSED
    assert await committed(async_pg_engine) == (1, 1)


async def test_waiting_for_a_duplicate_is_not_the_handlers_time(async_pg_engine: AsyncEngine):
    @inbox_handler("BillOrder", timeout=0.2)
    async def impatient(session: AsyncSession, event: OrderConfirmed) -> None:
        await bill(session, event)

    async with AsyncSession(async_pg_engine) as session:
        await session.begin()
        await session.run_sync(inbox.run_once, MESSAGE, bill)
        waiting = asyncio.create_task(run(async_pg_engine, impatient))
        await eventually_async(lambda: backends(async_pg_engine, "wait_event = 'transactionid'"))
        await session.execute(text("SELECT pg_sleep(0.3)"))
        await session.rollback()
        assert await waiting is Outcome.PROCESSED
