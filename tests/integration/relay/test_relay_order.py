"""Order by key on PostgreSQL, with several relays at once and a broker that fails."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import Message, tables
from outboxkit.brokers import Verdict
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.relay.claim import Claimer
from outboxkit.relay.order import Batch
from outboxkit.relay.shares import Shares
from outboxkit.retry import Backoff
from tests.integration.relay.recording import (
    NOW,
    Recorder,
    add,
    at_random,
    count,
    fill,
    number,
    relay,
    rows,
    running,
    turn,
)
from tests.support.night import by_night
from tests.support.polling import eventually_async

AMOUNTS = by_night(
    [(5000, 50, 100), (1000, 1, 25), (5000, 1000, 100)],
    else_=[(2000, 50, 100), (500, 1, 25), (2000, 1000, 100)],
)
"""Messages, keys, and the size of a batch."""
READY = tables.outbox.c.due_at.is_(None)
HOUR = timedelta(hours=1)


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
    policy = RelayPolicy(backoffs={Verdict.REJECTED: Backoff(base=HOUR, cap=HOUR, jitter=lambda: 1.0)})
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


async def test_relays_with_a_backlog_claim_different_keys(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """The first claims tell them of each other. From then on nothing waits for another relay."""
    fill(pg_engine, 2000, keys=0)
    now = datetime.now(UTC)
    claimers = [Claimer(async_pg_engine, 100) for _ in range(3)]
    first = [await claimer.claim(now, now=now) for claimer in claimers]
    with pg_engine.begin() as connection:
        free = select(tables.outbox.c.position).with_for_update(skip_locked=True)
        key = func.concat("k", tables.outbox.c.position % 50)
        connection.execute(tables.outbox.update().where(tables.outbox.c.position.in_(free)).values(key=key))
    batches = [await claimer.claim(now, now=now) for claimer in claimers]
    keys = [{row.message.key for row in batch.rows} for batch in batches]
    for batch in (*first, *batches):
        await batch.connection.close()
    assert [claimer.shares.count for claimer in claimers] == [3, 3, 3]
    assert [batch.blocked_rows.total() for batch in batches] == [0, 0, 0]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 50


async def test_a_claim_leaves_out_keys_that_are_blocked_in_the_batch_before(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """That batch keeps their rows locked until it is settled, so that nothing behind them could go."""
    fill(pg_engine, 30, keys=10)
    now = datetime.now(UTC)
    with pg_engine.begin() as connection:
        connection.execute(select(tables.outbox).where(tables.outbox.c.position <= 2).with_for_update())
        claimer = Claimer(async_pg_engine, 10)
        batch = await claimer.claim(now, now=now)
        assert (len(batch.send), batch.blocked_rows) == (8, {"k1": 1, "k2": 1})
        following = await claimer.claim(now, now=now, beside=batch)
        assert {row.message.key for row in following.rows} == {"k0", *(f"k{n}" for n in range(3, 10))}
        assert following.blocked_rows.total() == 0
        await following.connection.close()
        await batch.connection.close()


async def test_a_row_that_waits_in_the_batch_before_holds_up_the_rows_behind_it(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """That batch was planned not to send it, and does not, although the message before it is gone by now."""
    fill(pg_engine, 3, keys=1)
    now = datetime.now(UTC)
    first = tables.outbox.c.position == 1
    with pg_engine.begin() as connection:
        waits = {"held": True, "due_at": now + HOUR}
        connection.execute(tables.outbox.update().where(first).values(waits))
    claimer = Claimer(async_pg_engine, 1)
    batch = await claimer.claim(now, now=now)
    assert list(batch.waiting.values()) == [[2]]
    with pg_engine.begin() as connection:
        connection.execute(tables.outbox.delete().where(first))
    following = await claimer.claim(now, now=now, beside=batch)
    assert ([row.position for row in following.rows], following.send) == ([3], [])
    await following.connection.close()
    await batch.connection.close()


async def test_two_relays_work_off_a_backlog_and_others_take_over_when_they_are_gone(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, 2000, keys=0)
    clock = Seconds()
    claimers = [Claimer(async_pg_engine, 50, most_shares=2, monotonic=clock) for _ in range(5)]
    first = await take_turns(claimers)
    clock.now += 10
    following = await take_turns([claimer for claimer in claimers if claimer not in first])
    assert [len(first), len(following)] == [2, 2]


async def take_turns(claimers: Sequence[Claimer]) -> list[Claimer]:
    """Claim in turns, each with two batches open as in a relay. Returns those that have rows at last."""
    now = datetime.now(UTC)
    batches: dict[Claimer, list[Batch]] = {claimer: [] for claimer in claimers}
    for _ in range(6):
        for claimer, opened in batches.items():
            opened.append(await claimer.claim(now, now=now))
            if len(opened) > 2:
                await opened.pop(0).connection.close()
    for batch in chain(*batches.values()):
        await batch.connection.close()
    return [claimer for claimer, (_, last) in batches.items() if last.rows]


class Seconds:
    """A clock that goes on at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


class SameShare(Shares):
    """Each relay takes half of the keys, all of them the same half."""

    def saw(self, transactions: Iterable[tuple[int | None, str | None]]) -> None:
        super().saw(transactions)
        self.count, self.rank = 2, 0


class StandsBy(Shares):
    """There is no share at the first looks."""

    def saw(self, transactions: Iterable[tuple[int | None, str | None]]) -> None:
        super().saw(transactions)
        if self._looks < 5:
            self.count, self.rank = 2, 2


async def test_a_drain_that_stands_by_counts_nothing(
    pg_engine: Engine, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    """A count reads the whole backlog, and others are working it off."""
    monkeypatch.setattr("outboxkit.relay.claim.Shares", StandsBy)
    fill(pg_engine, 20, keys=0)
    recorder, counts = Recorder(), list[int]()

    def note(*given: Any) -> None:
        if "count(*)" in given[2]:
            counts.append(len(recorder.arrived))

    event.listen(async_pg_engine.sync_engine, "before_cursor_execute", note)
    with capture_logs() as logs:
        drained = await Relay(async_pg_engine, recorder).drain(asyncio.Event())
    assert (drained.published, drained.is_complete) == (20, True)
    assert set(counts) == {20}
    said = [line["event"] for line in logs if "stands by" in line["event"]]
    assert said == ["relay stands by while others work off the backlog", "relay no longer stands by"]


class NoShare(Shares):
    """There is none while others work off the backlog."""

    has_others_at_work = False

    def saw(self, transactions: Iterable[tuple[int | None, str | None]]) -> None:
        super().saw(transactions)
        if self.has_others_at_work:
            self.count, self.rank = 2, 2


async def test_inserts_do_not_notify_for_a_relay_that_stands_by(
    pg_engine: Engine, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outboxkit.relay.claim.Shares", NoShare)
    recorder = Recorder()

    async def listeners() -> int:
        async with async_pg_engine.connect() as connection:
            return (await connection.execute(select(func.count()).select_from(tables.listener))).scalar_one()

    async with running(relay(async_pg_engine, recorder, batch_size=50)):
        await eventually_async(listeners, lambda found: found == 1)
        monkeypatch.setattr(NoShare, "has_others_at_work", True)
        fill(pg_engine, 1000, keys=0)
        await eventually_async(listeners, lambda found: found == 0)
        assert len(recorder.arrived) < 1000
        monkeypatch.setattr(NoShare, "has_others_at_work", False)
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine), lambda left: left == 0)
        await eventually_async(listeners, lambda found: found == 1)
    assert len(recorder.arrived) == 1000


class AnyShare(Shares):
    """Each relay takes another part of the keys with each claim, and never tells the others."""

    def saw(self, transactions: Iterable[tuple[int | None, str | None]]) -> None:
        super().saw(transactions)
        self.count = random.randint(1, 5)
        self.rank = random.randrange(self.count)


@pytest.mark.parametrize("shares", [SameShare, AnyShare])
@pytest.mark.parametrize("keys", [3, 50])
async def test_wrong_shares_cost_speed_alone(
    pg_engine: Engine, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, shares: type[Shares], keys: int
):
    monkeypatch.setattr("outboxkit.relay.claim.Shares", shares)
    messages = by_night(2000, else_=800)
    fill(pg_engine, messages, keys=keys)
    recorder = Recorder()
    recorder.answer = at_random(keys, 0.02, [recorder])
    async with running(*(relay(async_pg_engine, recorder, batch_size=50) for _ in range(3))):
        await eventually_async(lambda: asyncio.to_thread(count, pg_engine), lambda left: left == 0)
    recorder.assert_in_order()
    assert len(set(recorder.arrived)) == messages


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
    two_hours = RelayPolicy(backoffs={Verdict.REJECTED: Backoff(base=2 * HOUR, cap=2 * HOUR, jitter=lambda: 1.0)})
    await turn(async_pg_engine, recorder, policy=two_hours)
    recorder.answer = lambda message: Verdict.CONFIRMED
    await turn(async_pg_engine, recorder, as_of=NOW + HOUR)
    assert recorder.arrived == []
    assert [row.due_at for row in rows(pg_engine)] == [NOW + 2 * HOUR] * 2
    await turn(async_pg_engine, recorder, as_of=NOW + 2 * HOUR)
    assert recorder.arrived == [failing, delayed]
