"""Turns on SQLite: what becomes of messages that fail, of what stands behind them, and of those nobody waits for."""

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from outboxkit import BrokerUnavailable
from outboxkit.brokers import Verdict
from outboxkit.relay.pipeline import Turn
from tests.unit.relay.conftest import SECOND, Bench
from tests.unit.shop import NOW

FULL = "CREATE TRIGGER full BEFORE DELETE ON outboxkit_outbox BEGIN SELECT RAISE(ABORT, 'no space'); END"


def told(verdict: Verdict, *ids: str):
    return lambda message: verdict if message.id in ids else None


async def turn(bench: Bench, batch_size: int = 10) -> Turn:
    async with bench.pipeline(batch_size) as pipeline:
        return await pipeline.turn(bench.clock.now, bench.stop)


async def test_a_failed_message_is_tried_again_when_it_is_due_and_not_before(bench: Bench):
    bench.add("bad", type="Unknown")
    for attempts, seconds in ((1, 10), (2, 20), (3, 40)):
        await turn(bench)
        (row,) = bench.rows()
        assert (row["attempts"], row["held"], row["due_at"]) == (attempts, True, bench.clock.now + seconds * SECOND)
        assert row["last_error"] == "unroutable: no queue is bound to 'Unknown'"
        assert row["first_failed_at"] == NOW
        bench.clock.now += (seconds - 1) * SECOND
        assert await turn(bench) is Turn.NOTHING
        bench.clock.now += SECOND
    bench.publisher.broker.queue("late", ["Unknown"])
    assert await turn(bench) is Turn.CAUGHT_UP
    assert (bench.left(), bench.dead()) == ([], [])
    assert bench.publisher.batches == [["bad"]] * 4, "each time under its own id"


async def test_an_unanswered_message_counts_nothing(bench: Bench):
    bench.add("a", "b", "c")
    before = bench.rows()
    bench.publisher.answer = told(Verdict.UNKNOWN, "b")
    await turn(bench)
    assert bench.rows() == [before[1]]
    assert bench.arrived() == ["a", "c"]


async def test_no_answer_at_all_is_an_outage(bench: Bench):
    bench.add("a", "b", "c")
    before = bench.rows()
    bench.publisher.answer = lambda message: Verdict.UNKNOWN
    with pytest.raises(BrokerUnavailable, match="told so"):
        await turn(bench)
    assert bench.rows() == before


async def test_while_no_settlement_can_be_written_one_message_at_a_time_is_published(bench: Bench):
    bench.add("a", "b", "c", "d")
    async with bench.pipeline() as pipeline:
        with bench.engine.begin() as connection:
            connection.execute(text(FULL))
        for _ in range(3):
            with pytest.raises(DBAPIError, match="no space"):
                await pipeline.turn(bench.clock.now, bench.stop)
        with bench.engine.begin() as connection:
            connection.execute(text("DROP TRIGGER full"))
        for _ in range(3):
            await pipeline.turn(bench.clock.now, bench.stop)
    assert bench.publisher.batches == [["a", "b", "c"], ["a"], ["a"], ["a"], ["b", "c"], ["d"]]
    assert bench.left() == []


async def test_a_row_that_cannot_be_settled_does_not_publish_a_whole_batch_for_each_before_it(bench: Bench):
    bench.add(*"abcdefghijkl")
    with bench.engine.begin() as connection:
        connection.execute(text(FULL.replace("BEGIN", "WHEN OLD.message_id = 'h' BEGIN")))
    async with bench.pipeline(8) as pipeline:
        for _ in range(8):
            with suppress(DBAPIError):
                await pipeline.turn(bench.clock.now, bench.stop)
    batches = ["".join(batch) for batch in bench.publisher.batches]
    assert batches == ["abcdefgh", "a", "bc", "defg", "hijkl", "h", "h", "h"]


async def test_a_batch_of_nothing_but_what_is_too_late_is_settled(bench: Bench):
    bench.add("a", "b", columns={"expires_at": NOW})
    assert await turn(bench) is Turn.MOVED
    assert (bench.publisher.batches, bench.left(), len(bench.dead())) == ([], [], 2)


async def test_after_an_outage_it_looks_below_its_floor(bench: Bench):
    async with bench.pipeline() as pipeline:
        await pipeline.turn(bench.clock.now, bench.stop)
        bench.add("low")  # as in a standby that was behind, and is the server now
        pipeline._claimer.floor.value = 1000
        bench.publisher.refuse_to_connect = 1
        with pytest.raises(BrokerUnavailable):
            await pipeline.turn(bench.clock.now, bench.stop)
        assert await pipeline.turn(bench.clock.now, bench.stop) is Turn.CAUGHT_UP


async def test_a_publisher_that_answers_for_too_few_settles_nothing(bench: Bench):
    async def publish(batch: object) -> list[object]:
        return []

    bench.add("a")
    bench.publisher.publish = publish
    with pytest.raises(BrokerUnavailable, match="0 receipts for 1 messages"):
        await turn(bench)
    assert bench.left() == ["a"]
    assert bench.async_engine.pool.checkedout() == 0


async def test_a_cancellation_that_nobody_asked_for_is_an_outage(bench: Bench):
    bench.add("a")
    before = bench.rows()
    for name in ("publish", "connect"):

        async def cancel(*_: object) -> None:
            raise asyncio.CancelledError

        kept = getattr(bench.publisher, name)
        setattr(bench.publisher, name, cancel)
        with pytest.raises(BrokerUnavailable, match="cancelled"):
            await turn(bench)
        setattr(bench.publisher, name, kept)
    assert bench.rows() == before
    assert bench.async_engine.pool.checkedout() == 0


async def test_a_row_that_cannot_be_read_is_dead_at_once_and_others_flow(bench: Bench):
    bench.add("fine")
    for number, columns in enumerate(({"headers": b"\xff"}, {"headers": b"[1]"}, {"headers": b"{" * 100_000})):
        bench.add(f"bad-{number}", key=f"k-{number}", columns=columns)
        bench.add(f"behind-{number}", key=f"k-{number}")
    await turn(bench)
    assert bench.arrived() == ["fine"]
    dead = sorted((row["message_id"], row["reason"], row["parked"]) for row in bench.dead())
    assert dead == [(f"bad-{number}", "rejected", True) for number in range(3)]
    assert all("its headers cannot be read" in row["error"] for row in bench.dead())
    assert bench.left() == [f"behind-{number}" for number in range(3)]
