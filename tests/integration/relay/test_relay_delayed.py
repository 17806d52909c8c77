"""Delayed messages and order by key on PostgreSQL: they are in nobody's way, and wait for others once they are due."""

from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.brokers import Verdict
from outboxkit.relay import RelayPolicy
from outboxkit.retry import Backoff
from tests.integration.relay.recording import NOW, Recorder, add, rows, turn

HOUR = timedelta(hours=1)
SLOW = RelayPolicy(backoffs={Verdict.REJECTED: Backoff(base=2 * HOUR, cap=2 * HOUR, jitter=lambda: 1.0)})


async def test_a_delayed_message_holds_back_nobody_and_comes_when_it_is_due(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    (delayed,) = add(pg_engine, 1, key="k", deliver_at=NOW + HOUR)
    later = add(pg_engine, 2, 3, key="k")
    recorder = Recorder()
    await turn(async_pg_engine, recorder)
    assert recorder.arrived == later
    await turn(async_pg_engine, recorder, as_of=NOW + HOUR)
    assert recorder.arrived == [*later, delayed]


async def test_a_delayed_message_that_is_due_waits_for_an_earlier_one_of_its_key(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    (failing,) = add(pg_engine, 1, key="k")
    (delayed,) = add(pg_engine, 2, key="k", deliver_at=NOW + HOUR)
    recorder = Recorder(lambda message: Verdict.REJECTED)
    await turn(async_pg_engine, recorder, policy=SLOW)
    recorder.answer = lambda message: Verdict.CONFIRMED
    await turn(async_pg_engine, recorder, as_of=NOW + HOUR)
    assert recorder.arrived == []
    assert [row.due_at for row in rows(pg_engine)] == [NOW + 2 * HOUR] * 2
    await turn(async_pg_engine, recorder, as_of=NOW + 2 * HOUR)
    assert recorder.arrived == [failing, delayed]
