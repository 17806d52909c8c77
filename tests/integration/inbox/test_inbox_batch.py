"""`inbox.run_batch` on real transactions: in one statement, once, and whoever else takes the same messages."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, event, ids, inbox, inbox_handler, outbox, tables
from outboxkit.inbox import Entry, handler_of

EFFECTS = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("by", String(300)))


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@inbox_handler("Bill", batch=True)
async def bill(session: AsyncSession, event: Ordered, message: Message) -> None:
    await session.execute(insert(EFFECTS).values(by=f"bill {message.id}"))
    outbox.add(session, event)


@inbox_handler("Ship", batch=True)
def ship(session: Session, event: Ordered, message: Message) -> None:
    session.execute(insert(EFFECTS).values(by=f"ship {message.id}"))


@pytest.fixture(autouse=True)
def _effects(engine: Engine) -> None:
    EFFECTS.metadata.create_all(engine)


def entries(*message_ids: str, handlers: tuple[object, ...] = (bill, ship)) -> list[Entry]:
    return [
        Entry.of(Message(id=id_, type="Ordered", payload=b'{"number":7}'), handler_of(handler))
        for id_ in message_ids
        for handler in handlers
    ]


async def run(engine: AsyncEngine, wanted: list[Entry]) -> list[Outcome]:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_batch, wanted)


def effects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(select(EFFECTS.c.by)).scalars())


async def test_one_message_for_two_handlers_with_duplicates(engine: Engine, async_engine: AsyncEngine):
    first, second = Outcome.PROCESSED, Outcome.DUPLICATE
    assert await run(async_engine, entries("b", "a", "b", "ä")) == [first] * 4 + [second] * 2 + [first] * 2
    assert await run(async_engine, entries("a", "c")) == [second] * 2 + [first] * 2
    assert effects(engine) == sorted(f"{by} {id_}" for by in ("bill", "ship") for id_ in ("a", "b", "c", "ä"))
    with engine.connect() as connection:
        asked = select(tables.outbox.c.causation_id).order_by(tables.outbox.c.position)
        assert connection.execute(asked).scalars().all() == ["b", "a", "ä", "c"]


async def test_each_row_keeps_the_time_of_its_message(engine: Engine, async_engine: AsyncEngine):
    """A row must stay for as long as its message is not stale, whatever the producer's clock says."""
    future = datetime(2082, 1, 1, 12, tzinfo=UTC)
    await run(async_engine, entries(ids.new(at=future), handlers=(ship,)))
    with engine.connect() as connection:
        assert connection.execute(select(tables.inbox.c.processed_at)).scalar_one() == future


async def test_thousands_at_once(engine: Engine, async_engine: AsyncEngine):
    wanted = entries(*(ids.new() for _ in range(2_000)), handlers=(ship,))
    assert set(await run(async_engine, wanted)) == {Outcome.PROCESSED}
    assert len(effects(engine)) == 2_000
