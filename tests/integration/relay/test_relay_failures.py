"""What goes wrong around a batch on PostgreSQL: no row is lost, none is counted, no connection leaks."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import Message, tables
from outboxkit.brokers import Receipt, Verdict
from outboxkit.relay import Relay
from outboxkit.relay.pipeline import Turn
from tests.integration.relay.recording import (
    NOW,
    Recorder,
    count,
    fill,
    pipeline,
    relay,
    rows,
    running,
)
from tests.support.night import by_night
from tests.support.polling import eventually_async


def end_all_others(engine: Engine) -> None:
    """End every other session of the database."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


class Gate(Recorder):
    """A recorder whose first batch waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.publishing, self.let_through = asyncio.Event(), asyncio.Event()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        self.publishing.set()
        await self.let_through.wait()
        return await super().publish(batch)


def free(engine: Engine) -> list[int]:
    """The positions that somebody else could claim now."""
    with engine.connect() as connection:
        query = select(tables.outbox.c.position).order_by(tables.outbox.c.position).with_for_update(skip_locked=True)
        return list(connection.execute(query).scalars())


def untouched(engine: Engine) -> list[int]:
    """The positions that nobody has locked yet. It takes no locks itself, so that no claim has to skip a row."""
    with engine.connect() as connection:
        return list(
            connection.execute(text("SELECT position FROM outboxkit_outbox WHERE xmax = 0 ORDER BY 1")).scalars()
        )


async def test_the_next_batch_is_claimed_while_one_is_published_and_a_cancelled_relay_gives_both_back(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 30, keys=3)
    gate = Gate()
    task = asyncio.create_task(relay(async_pg_engine, gate, batch_size=10).run(asyncio.Event()))
    await gate.publishing.wait()
    await eventually_async(lambda: asyncio.to_thread(untouched, pg_engine), lambda found: found == list(range(21, 31)))
    assert free(pg_engine) == list(range(21, 31))
    in_use = async_pg_engine.pool.checkedout
    await eventually_async(lambda: asyncio.sleep(0, in_use()), lambda found: found == 2)  # a look for pauses takes one
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert async_pg_engine.pool.checkedout() == 0
    await eventually_async(lambda: asyncio.to_thread(free, pg_engine), lambda found: found == list(range(1, 31)))
    assert gate.arrived == []
    assert (await relay(async_pg_engine, Recorder()).drain(asyncio.Event())).published == 30


async def test_a_relay_that_is_cancelled_anywhere_leaks_no_connection_and_loses_nothing(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 600, keys=20)
    recorder = Recorder()
    for steps in range(0, 160, 3):
        task = asyncio.create_task(relay(async_pg_engine, recorder, batch_size=5).run(asyncio.Event()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert async_pg_engine.pool.checkedout() == 0
    await relay(async_pg_engine, recorder).drain(asyncio.Event())
    assert len(set(recorder.arrived)) == 600
    recorder.assert_in_order()
    assert count(pg_engine) == 0


async def test_a_batch_behind_one_that_cannot_be_settled_keeps_no_connection(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """The first message fails, so that the batch that was claimed ahead has nothing to publish."""
    fill(pg_engine, 10, keys=1)
    recorder = Recorder(lambda message: Verdict.REJECTED if message.id == "m1" else Verdict.CONFIRMED)
    async with pipeline(async_pg_engine, recorder, batch_size=5) as turns:
        assert await turns.turn(NOW, asyncio.Event()) is Turn.MOVED
        assert async_pg_engine.pool.checkedout() == 2
        end_all_others(pg_engine)
        with pytest.raises(DBAPIError):
            await turns.turn(NOW, asyncio.Event())
        assert async_pg_engine.pool.checkedout() == 0
    assert count(pg_engine) == 10


async def test_a_message_that_expires_while_its_batch_waits_is_not_sent(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """Its batch is claimed ahead, and the one before takes long."""
    fill(pg_engine, 3, keys=0)
    with pg_engine.begin() as connection:
        ends = {"expires_at": NOW + timedelta(seconds=5)}
        connection.execute(update(tables.outbox).where(tables.outbox.c.message_id == "m2").values(ends))
    recorder = Recorder()
    async with pipeline(async_pg_engine, recorder, batch_size=1) as turns:
        await turns.turn(NOW, asyncio.Event())
        turns._clock = lambda: NOW + timedelta(seconds=6)
        for _ in range(2):
            await turns.turn(NOW, asyncio.Event())
    assert recorder.arrived == ["m1", "m3"]
    assert [row.reason for row in rows(pg_engine, tables.dead_letter)] == ["expired"]


async def test_a_stop_is_clean_if_the_database_ends_at_the_same_moment(pg_engine: Engine, async_pg_engine: AsyncEngine):
    fill(pg_engine, 30, keys=3)
    gate = Gate()
    async with running(relay(async_pg_engine, gate, batch_size=10)) as stop:
        await gate.publishing.wait()
        await eventually_async(lambda: asyncio.to_thread(untouched, pg_engine), lambda found: len(found) == 10)
        stop.set()
        end_all_others(pg_engine)
        gate.let_through.set()
    assert async_pg_engine.pool.checkedout() == 0
    assert free(pg_engine) == list(range(1, 31))


async def test_connections_that_the_server_ends_at_any_time_lose_nothing_and_keep_the_order(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 4000, keys=20)
    recorder = Recorder()

    def end_relays() -> None:
        with pg_engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'test' AND random() < 0.5"
                )
            )

    async def went_on(seen: int) -> bool:
        return len(recorder.arrived) > seen or await asyncio.to_thread(count, pg_engine) == 0

    async with running(*(relay(async_pg_engine, recorder, batch_size=25) for _ in range(3))):
        for _ in range(by_night(6, else_=2)):
            seen = len(recorder.arrived)
            await asyncio.to_thread(end_relays)
            await eventually_async(partial(went_on, seen))
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine), lambda left: left == 0)
    assert len(set(recorder.arrived)) == 4000
    recorder.assert_in_order()
    assert async_pg_engine.pool.checkedout() == 0


async def test_a_drain_gives_up_on_what_somebody_else_holds_after_its_patience(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 5, keys=1)
    with pg_engine.begin() as connection:
        connection.execute(select(tables.outbox).limit(1).with_for_update())
        done = await Relay(async_pg_engine, Recorder()).drain(asyncio.Event(), patience=timedelta(milliseconds=300))
    assert (done.published, done.blocked, done.is_complete) == (0, 5, False)
    assert async_pg_engine.pool.checkedout() == 0
    assert (await Relay(async_pg_engine, Recorder()).drain(asyncio.Event())).published == 5


class Reconnecting(Recorder):
    """Its connection is lost after the first batch, and connecting looks at the rows that are locked meanwhile."""

    trouble: str | None = None

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.free: list[int] = []

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        receipts = await super().publish(batch)
        self.trouble = "the connection is lost"
        return receipts

    async def connect(self) -> None:
        with self.engine.begin() as connection:
            free = select(tables.outbox.c.position).with_for_update(skip_locked=True)
            self.free.append(len(connection.execute(free).all()))
        self.trouble = None


async def test_no_row_is_locked_while_the_publisher_connects(async_pg_engine: AsyncEngine, pg_engine: Engine):
    fill(pg_engine, 9, keys=9)
    publisher = Reconnecting(pg_engine)
    async with pipeline(async_pg_engine, publisher, batch_size=3) as turns:
        for _ in range(2):
            await turns.turn(NOW, asyncio.Event())
    assert publisher.free == [9, 6]
