"""Order by key on PostgreSQL, with several relays at once and a broker that fails."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import Message, tables
from outboxkit.brokers import Verdict
from outboxkit.relay import RelayPolicy
from outboxkit.relay.claim import Claimer
from outboxkit.relay.order import YIELD_SECONDS
from outboxkit.retry import Backoff
from tests.integration.recording import Recorder, at_random, count, fill, number, relay, rows, running
from tests.night import by_night
from tests.polling import eventually_async

AMOUNTS = by_night(
    [(5000, 50, 100), (1000, 1, 25), (5000, 1000, 100)],
    else_=[(2000, 50, 100), (500, 1, 25), (2000, 1000, 100)],
)
"""Messages, keys, and the size of a batch."""
READY = tables.outbox.c.due_at.is_(None)


@pytest.mark.parametrize(("messages", "keys", "batch_size"), AMOUNTS)
async def test_each_key_is_in_order_with_four_relays_and_a_broker_that_fails(
    pg_engine: Engine, async_pg_engine: AsyncEngine, messages: int, keys: int, batch_size: int
):
    fill(pg_engine, messages, keys=keys)
    recorder = Recorder()
    recorder.answer = at_random(messages + keys, 0.02, [recorder])
    async with running(*(relay(async_pg_engine, recorder, batch_size=batch_size) for _ in range(4))):
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine), lambda left: left == 0)
    recorder.assert_in_order()
    assert len(set(recorder.arrived)) == messages
    assert {Verdict.UNROUTABLE, Verdict.REJECTED, Verdict.UNKNOWN} <= recorder.verdicts.keys()
    assert rows(pg_engine, tables.dead_letter) == []
    assert async_pg_engine.pool.checkedout() == 0


async def test_what_stands_behind_a_failure_of_the_batch_before_is_settled_at_once(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """The next batch, claimed already, is of this key alone: nothing of it is sent, and nothing keeps a row locked."""
    fill(pg_engine, 20, keys=1)
    hour = Backoff(base=timedelta(hours=1), cap=timedelta(hours=1), jitter=lambda: 1.0)
    policy = RelayPolicy(backoffs={Verdict.REJECTED: hour})
    recorder = Recorder(lambda message: Verdict.REJECTED if message.id == "m6" else Verdict.CONFIRMED)
    async with running(relay(async_pg_engine, recorder, batch_size=10, policy=policy)):
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine, READY), lambda left: left == 0)
    assert recorder.arrived == ["m1", "m2", "m3", "m4", "m5"]
    assert [(row.message_id, row.attempts) for row in rows(pg_engine)][:2] == [("m6", 1), ("m7", 0)]
    assert len({row.due_at for row in rows(pg_engine)}) == 1


async def test_other_keys_flow_past_a_deep_backlog_that_waits_and_comes_back_in_order(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 3000, keys=1)
    fill(pg_engine, 3200, first=3001, keys=100)
    with pg_engine.begin() as connection:
        connection.execute(
            tables.outbox.update()
            .where(tables.outbox.c.position > 3000, tables.outbox.c.key == "k0")
            .values(key="other")
        )
    works = asyncio.Event()

    def answer(message: Message) -> Verdict:
        return Verdict.UNROUTABLE if message.id == "m1" and not works.is_set() else Verdict.CONFIRMED

    recorder = Recorder(answer)
    async with running(relay(async_pg_engine, recorder), relay(async_pg_engine, recorder)):
        await eventually_async(
            lambda: asyncio.to_thread(count, pg_engine, tables.outbox.c.key != "k0"), lambda n: n == 0
        )
        assert len(recorder.arrived) == 200
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine, READY), lambda left: left == 0)
        assert count(pg_engine) == 3000
        assert recorder.verdicts[Verdict.UNROUTABLE] > 0
        works.set()
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine), lambda left: left == 0)
    assert [found for found in recorder.arrived if number(found) <= 3000] == [f"m{n}" for n in range(1, 3001)]


async def test_other_keys_flow_past_a_key_whose_first_message_somebody_else_holds(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """As long as it takes: a relay that froze, or a transaction that cancels the message and stays open."""
    fill(pg_engine, 300, keys=1)
    fill(pg_engine, 320, first=301, keys=20)
    with pg_engine.begin() as connection:
        connection.execute(tables.outbox.update().where(tables.outbox.c.position == 320).values(key="other"))
    recorder = Recorder()
    with pg_engine.begin() as connection:
        connection.execute(select(tables.outbox).where(tables.outbox.c.position == 1).with_for_update())
        async with running(relay(async_pg_engine, recorder, batch_size=50)):
            await eventually_async(lambda: asyncio.sleep(0, len(recorder.arrived)), lambda found: found == 20)
    assert {number(found) for found in recorder.arrived} == set(range(301, 321))


async def test_a_claim_that_mostly_waits_is_given_back_until_the_other_relay_stands_still(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """Then what is free goes, and nothing that waits."""
    fill(pg_engine, 100, keys=10)
    with pg_engine.begin() as connection:
        free = tables.outbox.c.position % 10 == 0
        connection.execute(tables.outbox.update().where(free).values(key=None))
    now, seconds = datetime.now(UTC), [100.0]
    other, claimer = Claimer(async_pg_engine, 40), Claimer(async_pg_engine, 40, monotonic=lambda: seconds[0])
    held = await other.claim(now, now=now)
    assert len(held.plan.send) == 40
    batch = await claimer.claim(now, now=now)
    assert (len(batch.rows), batch.plan.send, claimer.yields) == (40, [], True)
    await batch.give_back()
    probe = await claimer.claim(now, now=now)
    assert (len(probe.rows), probe.plan.send, claimer.yields) == (20, [], True)
    await probe.give_back()
    seconds[0] += YIELD_SECONDS
    batch = await claimer.claim(now, now=now)
    assert not claimer.yields
    assert {row.message.key for row in batch.plan.send} == {None}
    await batch.give_back()
    await held.give_back()
