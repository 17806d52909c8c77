"""`inbox.run_batch` where PostgreSQL has more to say: batches at the same time, and errors that a handler swallows."""

import asyncio
import random
from dataclasses import dataclass

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, TransactionRequired, event, ids, inbox, inbox_handler, tables
from outboxkit.inbox import BatchEntryFailed, Entry, handler_of
from tests.support.ledger_requests import waiting
from tests.support.polling import eventually_async

EFFECTS = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("by", String(300)))


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@inbox_handler("Ship", batch=True)
def ship(session: Session, event: Ordered, message: Message) -> None:
    session.execute(insert(EFFECTS).values(by=message.id))


@pytest.fixture(autouse=True)
def _effects(pg_engine: Engine) -> None:
    EFFECTS.metadata.create_all(pg_engine)


def entries(*message_ids: str, handler: object = ship) -> list[Entry]:
    found = handler_of(handler)
    return [Entry.of(Message(id=id_, type="Ordered", payload=b'{"number":7}'), found) for id_ in message_ids]


async def run(engine: AsyncEngine, wanted: list[Entry]) -> list[Outcome]:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_batch, wanted)


def effects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(select(EFFECTS.c.by)).scalars())


async def test_two_batches_that_overlap_wait_for_each_other_one_way(pg_engine: Engine, async_pg_engine: AsyncEngine):
    shuffle, names = random.Random(7).shuffle, [ids.new() for _ in range(300)]

    async def consume() -> int:
        done = 0
        for start in range(0, len(names), 100):
            mine = names[start : start + 100] * 2
            shuffle(mine)
            done += (await run(async_pg_engine, entries(*mine))).count(Outcome.PROCESSED)
        return done

    for _ in range(5):
        assert sum(await asyncio.gather(*(consume() for _ in range(4)))) == len(names)
        names[:] = [ids.new() for _ in names]
    assert len(effects(pg_engine)) == len(set(effects(pg_engine))) == 1_500


async def test_a_batch_that_waits_for_a_message_holds_none_behind_it(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """Whatever the order in which they came: two batches never wait for each other in a circle."""
    row = {"handler": "Ship", "type": "Ordered"}
    with pg_engine.connect() as other:
        other.execute(insert(tables.inbox).values(message_id="a", **row))
        batch = asyncio.create_task(run(async_pg_engine, entries("c", "a", "b", "c")))
        await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine))
        other.execute(text("SET LOCAL lock_timeout = '10s'"))
        for message_id in ("b", "c"):
            other.execute(insert(tables.inbox).values(message_id=message_id, **row))
        other.commit()
    assert await batch == [Outcome.DUPLICATE] * 4


async def test_an_error_that_a_handler_swallowed_is_its_own_and_not_the_next_ones(async_pg_engine: AsyncEngine):
    @inbox_handler("Swallows", batch=True)
    async def swallows(session: AsyncSession, event: Ordered) -> None:
        with pytest.raises(IntegrityError):
            await session.execute(insert(EFFECTS).values([{"id": 1}, {"id": 1}]))

    with pytest.raises(BatchEntryFailed) as raised:
        await run(async_pg_engine, [*entries("a"), *entries("a", handler=swallows), *entries("b")])
    assert raised.value.index == 1
    assert isinstance(raised.value.__cause__, TransactionRequired)
    async with AsyncSession(async_pg_engine) as session:
        assert await session.scalar(select(func.count()).select_from(tables.inbox)) == 0
