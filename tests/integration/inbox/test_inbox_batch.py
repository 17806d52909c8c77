"""`inbox.run_batch` on real transactions: in one statement, once, and whoever else takes the same messages."""

import asyncio
import random
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, TransactionRequired, ids, inbox, inbox_handler, outbox, tables
from outboxkit.inbox import BatchEntryFailed, Entry, handler_of
from tests.support.ledger_requests import waiting
from tests.support.polling import eventually_async
from tests.unit import shop
from tests.unit.shop import OrderConfirmed

PROCESSED, DUPLICATE = Outcome.PROCESSED, Outcome.DUPLICATE


@inbox_handler("Bill", batch=True)
async def bill(session: AsyncSession, event: OrderConfirmed, message: Message) -> None:
    outbox.add(session, event, key=f"bill {message.id}")


@inbox_handler("Ship", batch=True)
def ship(session: Session, event: OrderConfirmed, message: Message) -> None:
    outbox.add(session, event, key=f"ship {message.id}")


def entries(*message_ids: str, handlers: tuple[object, ...] = (ship,)) -> list[Entry]:
    return [Entry.of(shop.message(id=id_), handler_of(handler)) for id_ in message_ids for handler in handlers]


async def run(engine: AsyncEngine, wanted: list[Entry]) -> list[Outcome]:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_batch, wanted)


def effects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(select(tables.outbox.c.key).order_by(tables.outbox.c.position)).scalars())


async def test_one_message_for_two_handlers_with_duplicates(engine: Engine, async_engine: AsyncEngine):
    both = (bill, ship)
    first, second = [PROCESSED] * 2, [DUPLICATE] * 2
    assert await run(async_engine, entries("b", "a", "b", "ä", handlers=both)) == first + first + second + first
    assert await run(async_engine, entries("a", "c", handlers=both)) == second + first
    assert effects(engine) == [f"{by} {id_}" for id_ in ("b", "a", "ä", "c") for by in ("bill", "ship")]


async def test_each_row_keeps_the_time_of_its_message(engine: Engine, async_engine: AsyncEngine):
    """A row must stay for as long as its message is not stale, whatever the producer's clock says."""
    future = datetime(2082, 1, 1, 12, tzinfo=UTC)
    await run(async_engine, entries(ids.new(at=future)))
    with engine.connect() as connection:
        assert connection.execute(select(tables.inbox.c.processed_at)).scalar_one() == future


async def test_thousands_at_once(engine: Engine, async_engine: AsyncEngine):
    assert set(await run(async_engine, entries(*(ids.new() for _ in range(2_000))))) == {PROCESSED}
    assert len(effects(engine)) == 2_000


async def test_two_batches_that_overlap_wait_for_each_other_one_way(pg_engine: Engine, async_pg_engine: AsyncEngine):
    shuffle, names = random.Random(7).shuffle, [ids.new() for _ in range(300)]

    async def consume() -> int:
        done = 0
        for start in range(0, len(names), 100):
            mine = names[start : start + 100] * 2
            shuffle(mine)
            done += (await run(async_pg_engine, entries(*mine))).count(PROCESSED)
        return done

    for _ in range(5):
        assert sum(await asyncio.gather(*(consume() for _ in range(4)))) == len(names)
        names[:] = [ids.new() for _ in names]
    assert len(effects(pg_engine)) == len(set(effects(pg_engine))) == 1_500


async def test_a_batch_that_waits_for_a_message_holds_none_behind_it(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """Whatever the order in which they came: two batches never wait for each other in a circle."""
    row = {"handler": "Ship", "type": "OrderConfirmed"}
    with pg_engine.connect() as other:
        other.execute(insert(tables.inbox).values(message_id="a", **row))
        batch = asyncio.create_task(run(async_pg_engine, entries("c", "a", "b", "c")))
        await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine))
        other.execute(text("SET LOCAL lock_timeout = '10s'"))
        for message_id in ("b", "c"):
            other.execute(insert(tables.inbox).values(message_id=message_id, **row))
        other.commit()
    assert await batch == [DUPLICATE] * 4


async def test_an_error_that_a_handler_swallowed_is_its_own_and_not_the_next_ones(
    async_pg_engine: AsyncEngine, pg_engine: Engine
):
    @inbox_handler("Swallows", batch=True)
    async def swallows(session: AsyncSession, event: OrderConfirmed) -> None:
        row = {"handler": "Twice", "message_id": "m", "type": "OrderConfirmed"}
        with pytest.raises(IntegrityError):
            await session.execute(insert(tables.inbox).values([row, row]))

    with pytest.raises(BatchEntryFailed) as raised:
        await run(async_pg_engine, [*entries("a"), *entries("a", handlers=(swallows,)), *entries("b")])
    assert raised.value.index == 1
    assert isinstance(raised.value.__cause__, TransactionRequired)
    with pg_engine.connect() as connection:
        assert connection.execute(select(tables.inbox)).all() == []
