"""`inbox.run_once` where PostgreSQL has more to say: two at the same time, autocommit, a schema of its own."""

import asyncio
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, TransactionRequired, event, inbox, inbox_handler, outbox, tables
from tests.polling import eventually_async

MESSAGE = Message(id="m", type="Ordered", payload=b'{"number":7}')


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@inbox_handler("BillOrder")
async def bill(session: AsyncSession, event: Ordered) -> None:
    outbox.add(session, event)


@pytest.mark.parametrize("first_commits", [True, False])
async def test_at_the_same_time_the_second_waits_for_the_first(async_pg_engine: AsyncEngine, first_commits: bool):
    async def second() -> Outcome:
        async with AsyncSession(async_pg_engine) as session, session.begin():
            return await session.run_sync(inbox.run_once, MESSAGE, bill)

    async with AsyncSession(async_pg_engine) as session:
        await session.begin()
        assert await session.run_sync(inbox.run_once, MESSAGE, bill) is Outcome.PROCESSED
        waiting = asyncio.create_task(second())
        await eventually_async(lambda: waits_for_a_transaction(async_pg_engine))
        assert not waiting.done()
        await (session.commit() if first_commits else session.rollback())
        assert await waiting is (Outcome.DUPLICATE if first_commits else Outcome.PROCESSED)
    async with AsyncSession(async_pg_engine) as session:
        assert (await session.execute(select(func.count()).select_from(tables.outbox))).scalar_one() == 1


async def waits_for_a_transaction(engine: AsyncEngine) -> int:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"
    async with engine.connect() as connection:
        return int((await connection.execute(text(asked))).scalar_one())


def test_an_autocommit_connection_is_refused(pg_engine: Engine):
    engine = create_engine(pg_engine.url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session, session.begin(), pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
        inbox.run_once(session, MESSAGE, bill)
    engine.dispose()
