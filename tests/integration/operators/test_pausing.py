"""Pauses of relays and consumers at work, on PostgreSQL and RabbitMQ: nothing is lost, doubled or counted."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import Message, inbox_handler, tables
from outboxkit.brokers import Receipt
from outboxkit.database import engines
from outboxkit.database.session_names import RELAY_LISTENER as LISTENER
from outboxkit.operators.holding import Holding, read_holding
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.runtime import process
from outboxkit.runtime.pauses import read_pauses
from outboxkit.runtime.workers import CONSUMER, RELAY, Presence, note_sessions
from tests.integration.consumer.running_consumer import Ordered, publish, starter
from tests.integration.relay.recording import Recorder, count, fill, relay, rows, running
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

Log = list[Any]
CUT_OFF = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('test', :listener)
"""


def begin(engine: Engine, process: str, name: str) -> None:
    with engine.begin() as connection:
        pause_process(connection, process, name, why="a move", by="ada")


def end(engine: Engine, process: str, name: str) -> None:
    with engine.begin() as connection:
        assert resume_process(connection, process, name, by="ada") is not None


def reader(read: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    return lambda: asyncio.to_thread(read)


async def logged(said: Log, text_: str, times: int = 1) -> None:
    await eventually_async(
        reader(lambda: [line for line in said if line["event"] == text_]), lambda all_: len(all_) >= times
    )


async def test_several_relays_stop_together_hold_nothing_and_go_on(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """Two pauses in the middle of a backlog: what arrived was settled, and everything arrives once and in order."""
    fill(pg_engine, 3000, keys=10)
    recorder = Recorder()
    with capture_logs() as said:
        async with running(relay(async_pg_engine, recorder), relay(async_pg_engine, recorder)):
            for turn in (1, 2):
                await eventually_async(reader(lambda: len(recorder.arrived)), lambda arrived: arrived > 0)
                begin(pg_engine, RELAY, "default")
                await logged(said, "relay paused", 2 * turn)
                before = len(recorder.arrived)
                assert count(pg_engine) == 3000 - before, "what has arrived is settled"
                assert locked(pg_engine) == 0
                end(pg_engine, RELAY, "default")
                await logged(said, "relay resumed", 2 * turn)
            await eventually_async(reader(lambda: count(pg_engine)), lambda left: left == 0)
    assert max(Counter(recorder.arrived).values()) == 1
    recorder.assert_in_order()
    assert not [line for line in said if line["log_level"] in ("warning", "error")]


async def test_a_pause_during_a_publish_settles_it_and_unlocks_what_was_claimed_ahead(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    may_answer = asyncio.Event()

    class Slow(Recorder):
        async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
            await may_answer.wait()
            return await super().publish(batch)

    fill(pg_engine, 200, keys=10)
    recorder = Slow()
    paused = relay(async_pg_engine, recorder)
    with capture_logs() as said:
        async with running(paused):
            await eventually_async(reader(lambda: claimed(pg_engine)), lambda rows_: rows_ == 100)
            begin(pg_engine, RELAY, "default")
            await eventually_async(reader(lambda: paused._watch.current), lambda pause: pause is not None)
            may_answer.set()
            await logged(said, "relay paused")
            assert (len(recorder.arrived), count(pg_engine), locked(pg_engine)) == (50, 150, 0)


def claimed(engine: Engine) -> int:
    """Rows of the outbox that were locked once. It takes no lock, which a claim could meet and skip."""
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM outboxkit_outbox WHERE xmax::text <> '0'")) or 0)


def locked(engine: Engine) -> int:
    """Rows of the outbox that somebody holds."""
    with engine.begin() as connection:
        free = select(tables.outbox.c.position).with_for_update(skip_locked=True)
        return count(engine) - len(connection.execute(free).all())


async def test_an_idle_relay_that_is_paused_lets_no_insert_notify(pg_engine: Engine, async_pg_engine: AsyncEngine):
    recorder = Recorder()

    def listeners() -> int:
        return len(rows(pg_engine, tables.listener))

    with capture_logs() as said:
        async with running(relay(async_pg_engine, recorder)):
            await eventually_async(reader(listeners), lambda found: found == 1)
            begin(pg_engine, RELAY, "default")
            await logged(said, "relay paused")
            assert listeners() == 0
            fill(pg_engine, 3, keys=1)
            end(pg_engine, RELAY, "default")
            await eventually_async(reader(lambda: count(pg_engine)), lambda left: left == 0)
    assert recorder.arrived == ["m1", "m2", "m3"]


async def test_a_relay_stays_paused_while_the_database_cuts_it_off(pg_engine: Engine, async_pg_engine: AsyncEngine):
    fill(pg_engine, 3, keys=1)
    begin(pg_engine, RELAY, "default")
    recorder, looks = Recorder(), 0

    @event.listens_for(async_pg_engine.sync_engine, "connect")
    def _count(*_: Any) -> None:
        nonlocal looks
        looks += 1

    with capture_logs() as said:
        async with running(relay(async_pg_engine, recorder)):
            await logged(said, "relay paused")
            before = looks
            with pg_engine.begin() as connection:
                connection.execute(text(CUT_OFF), {"listener": LISTENER})
            await eventually_async(reader(lambda: looks), lambda now: now > before)
            assert recorder.arrived == []
            end(pg_engine, RELAY, "default")
            await eventually_async(reader(lambda: count(pg_engine)), lambda left: left == 0)
    assert recorder.arrived == ["m1", "m2", "m3"]


async def test_a_pause_is_acknowledged_for_the_sessions_of_all_threads_and_queues(
    pg_engine: Engine, postgresql_url: str
):
    """Consumers of two queues share an engine, and the one beside it if any of them has a plain handler."""
    engine = process.engine(postgresql_url, name="outboxkit consumer a, b")
    begin(pg_engine, CONSUMER, "b")

    def holding() -> Holding:
        with pg_engine.connect() as connection:
            (each,) = read_holding(connection, read_pauses(connection))
            return each

    ours, shard = (Presence(engine, CONSUMER, "b") for _ in range(2))
    async with engine.connect() as kept:
        await kept.execution_options(isolation_level="AUTOCOMMIT")
        twin = await engines.beside(engine, pool_size=1)
        note_sessions(twin, beside=engine.sync_engine)
        with twin.connect():
            await shard.write(kept, rests=False)
            assert (holding().holders, len(holding().others)) == (0, 3)
            await ours.write(kept, rests=True)
            assert holding().holders == 0, "a shard of the queue is still at work in this process"
            await shard.write(kept, rests=True)
            assert (holding().holders, holding().others) == (1, ()), "it is one process"
            await ours.write(kept)
            assert holding().holders == 0, "it works again"
        await kept.invalidate()
    await ours.leave()
    await shard.leave()
    assert (holding().holders, rows(pg_engine, tables.worker)) == (0, [])
    twin.dispose()
    await engine.dispose()


async def test_two_consumers_of_a_queue_are_paused_and_another_queue_is_not(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    @inbox_handler("Count")
    async def handle(session: AsyncSession, event: Ordered) -> None: ...

    begin(pg_engine, CONSUMER, "another")
    start = starter(async_pg_engine, broker)
    with capture_logs() as said:
        async with start(handle) as one, start(handle) as other:
            publish(broker, 1, "m1")
            await eventually_async(
                reader(lambda: one.consumer.outcomes.total() + other.consumer.outcomes.total()), lambda sum_: sum_ == 1
            )
            begin(pg_engine, CONSUMER, broker.queue)
            await logged(said, "consumer paused", 2)
            publish(broker, 2, "m2")
            assert (broker.depth(), broker.consumers()) == (1, 0)
            end(pg_engine, CONSUMER, broker.queue)
            await eventually_async(
                reader(lambda: one.consumer.outcomes.total() + other.consumer.outcomes.total()), lambda sum_: sum_ == 2
            )
