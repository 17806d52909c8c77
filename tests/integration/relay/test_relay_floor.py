"""The floor on PostgreSQL: it keeps claims short while vacuum is held back, and hides no row."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements, tables
from outboxkit.relay.claim import Claimer
from tests.integration.relay.recording import NOW, Recorder, count, fill, number, relay, running
from tests.support.polling import eventually_async

NEW = {"type": "T", "payload": b"{}", "headers": b"{}", "content_type": "application/json", "created_at": NOW}


class Ticking:
    """Seconds that pass by being asked for: a relay that is quick, and looks at the table with every other claim."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.03
        return self.now


def add(connection: Connection, message_id: str, key: str | None = None, **columns: Any) -> int:
    row = NEW | {"message_id": message_id, "key": key} | columns
    position = connection.execute(insert(tables.outbox).values(row).returning(tables.outbox.c.position)).scalar_one()
    return int(position)


async def emptied(engine: Engine) -> None:
    await eventually_async(lambda: asyncio.to_thread(count, engine), lambda left: left == 0)


@pytest.fixture
def blocked_vacuum(pg_engine: Engine) -> Iterator[None]:
    """A transaction with an old snapshot, in the same database."""
    with pg_engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT count(*) FROM outboxkit_outbox"))
        yield


async def turns(batches: Claimer, engine: AsyncEngine, number_of: int) -> list[str]:
    """Claim and delete batches, as fast as that goes; returns what was claimed."""
    found: list[str] = []
    forget = statements.settle.forget_rows("postgresql")
    for _ in range(number_of):
        batch = await batches.claim(NOW, now=NOW)
        found += [row.message.id for row in batch.send]
        await batch.connection.execute(forget, {"positions": [row.position for row in batch.send]})
        await batch.connection.commit()
        await batch.connection.close()
    return found


async def test_a_writer_that_commits_after_thousands_have_passed_is_found_without_a_sweep(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    batches = Claimer(async_pg_engine, 100, monotonic=Ticking())
    assert await turns(batches, async_pg_engine, 1) == []  # this one sweeps
    batches._next_sweep = float("inf")
    fill(pg_engine, 1000, keys=10)
    await turns(batches, async_pg_engine, 20)
    with pg_engine.connect() as writer:
        early = add(writer, "early", key="k0")
        fill(pg_engine, 4000, first=1001, keys=10)
        await turns(batches, async_pg_engine, 60)
        assert 1000 <= batches.floor.value < early
        writer.commit()
    assert await turns(batches, async_pg_engine, 1) == ["early"]
    fill(pg_engine, 4500, first=4001, keys=10)
    await turns(batches, async_pg_engine, 30)
    assert batches.floor.value > 4000, "it goes on once the writer has ended"
    assert count(pg_engine) == 0


async def test_a_key_that_went_on_meanwhile_goes_on_in_order_from_the_late_row(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    recorder = Recorder()
    with pg_engine.connect() as writer:
        async with running(relay(async_pg_engine, recorder), relay(async_pg_engine, recorder)):
            add(writer, "m1", key="k0")
            for first in (2, 1002, 2002):
                fill(pg_engine, first + 999, first=first, keys=10)
                await emptied(pg_engine)
            writer.commit()
            fill(pg_engine, 4001, first=3002, keys=10)
            await emptied(pg_engine)
    assert sorted(recorder.arrived, key=number) == [f"m{n}" for n in range(1, 4002)]
    after = [found for found in recorder.arrived if recorder.keys[found] == "k0" and (number(found) > 3001)]
    assert recorder.arrived.index("m1") < recorder.arrived.index(after[0])
    assert after == sorted(after, key=number)


async def test_rows_that_a_dead_relay_held_keep_the_floor_down_and_are_published(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 2000, keys=50)
    batches = Claimer(async_pg_engine, 100, monotonic=Ticking())
    with pg_engine.connect() as dead:
        held = dead.execute(
            select(tables.outbox.c.message_id)
            .where(tables.outbox.c.position.between(301, 310))
            .order_by(tables.outbox.c.position)
            .with_for_update()
        )
        held_ids = list(held.scalars())
        await turns(batches, async_pg_engine, 1)
        batches._next_sweep = float("inf")
        await turns(batches, async_pg_engine, 60)
        assert batches.floor.value <= 300
        dead.invalidate()
    found = await eventually_async(lambda: turns(batches, async_pg_engine, 1))
    assert found[: len(held_ids)] == held_ids
    await turns(batches, async_pg_engine, 30)
    assert count(pg_engine) == 0


@pytest.mark.parametrize("reset", [False, True], ids=["by hand", "numbering starts again"])
async def test_rows_below_the_floor_are_found_by_the_sweep_and_kept_in_order(
    pg_engine: Engine, async_pg_engine: AsyncEngine, reset: bool
):
    fill(pg_engine, 3000, keys=10)
    batches = Claimer(async_pg_engine, 100, monotonic=Ticking())
    await turns(batches, async_pg_engine, 60)
    assert batches.floor.value > 2000
    with pg_engine.begin() as connection:
        if reset:
            connection.execute(text("ALTER SEQUENCE outboxkit_outbox_position_seq RESTART"))
        else:
            connection.execute(insert(tables.outbox).values(NEW | {"message_id": "old", "position": 17, "key": "k1"}))
        add(connection, "new", key="k1")
        add(connection, "newer", key="k1")
    batches._next_sweep = float("inf")
    before = await turns(batches, async_pg_engine, 1)
    assert before == ([] if reset else ["new", "newer"])
    batches.sweep()
    assert await turns(batches, async_pg_engine, 1) == (["new", "newer"] if reset else ["old"])
    assert batches.floor.value == 0
    assert count(pg_engine) == 0


def buffers(engine: Engine, floor: int) -> int:
    """What PostgreSQL reads of index and table to claim 100 rows."""
    query = statements.claim.claim_ready().compile(engine)
    given = {"destination": "default", "floor": floor, "limit": 100, "payload_limit": 1000}
    with engine.connect() as connection:
        found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", given).scalar_one()
        connection.rollback()
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.usefixtures("blocked_vacuum")
async def test_a_claim_reads_no_more_the_longer_vacuum_is_held_back(pg_engine: Engine, async_pg_engine: AsyncEngine):
    batches = Claimer(async_pg_engine, 100, monotonic=Ticking())
    with_floor, without = [], []
    for last in (5000, 10_000, 15_000):
        fill(pg_engine, last + 100, first=last - 4899, keys=10)
        while (await turns(batches, async_pg_engine, 1)) and count(pg_engine) > 100:
            pass
        with_floor.append(buffers(pg_engine, batches.floor.value))
        without.append(buffers(pg_engine, 0))
    assert max(with_floor) - min(with_floor) < 30
    assert without[1] - without[0] > 30, "the dead rows are still there: without a floor all are read"
    assert without[2] - without[1] > 30
