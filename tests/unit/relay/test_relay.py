"""`run` and `drain` on SQLite: what is published, kept and counted, what is waited out, and how they end."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Message, ids, outbox
from outboxkit.brokers import Receipt, Verdict
from outboxkit.relay import Drained, Relay
from outboxkit.retry import Backoff
from outboxkit.runtime import process
from tests.unit.relay.conftest import SECOND, Bench


async def test_a_drain_publishes_what_is_due_in_the_order_of_the_positions(bench: Bench):
    bench.add(*"abcdefg")
    done = await bench.drain(batch_size=3)
    assert bench.publisher.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert done == Drained(published=7)
    assert done.is_complete
    assert bench.left() == []
    assert bench.publisher.closed == 1


async def test_a_drain_tries_a_failing_message_once_and_says_why(bench: Bench):
    bench.add("good")
    bench.add(*"abcd", type="Unknown")
    with capture_logs() as said:
        done = await bench.drain(batch_size=3)
    assert bench.publisher.batches == [["good", "a", "b"], ["c", "d"]]
    assert (done.published, done.blocked, done.later, done.is_complete) == (1, 0, 4, False)
    assert done.failed == {"Unknown": (4, "unroutable: no queue is bound to 'Unknown'")}
    lines = [line for line in said if line["log_level"] == "warning"]
    assert [(line["message_id"], line["type"], line["attempts"], line.get("count")) for line in lines] == [
        ("a", "Unknown", 1, None),
        ("d", "Unknown", 1, 3),
    ]


async def test_a_drain_that_is_stopped_while_the_broker_is_away_does_not_say_that_it_is_back(bench: Bench):
    class Stopping(int):
        """Refuses for ever; at the first time the stop is set."""

        def __sub__(self, _: int) -> int:
            bench.stop.set()
            return self

    bench.add("a")
    bench.publisher.refuse_to_connect = Stopping(1)
    with capture_logs() as said:
        done = await bench.drain()
    assert (done.published, done.blocked) == (0, 1)
    assert not [line["event"] for line in said if "is back" in line["event"]]


async def test_a_drain_without_patience_raises_the_outage(bench: Bench):
    bench.add("a")
    bench.publisher.refuse_to_connect = 10**6
    before = bench.rows()
    with pytest.raises(BrokerUnavailable):
        await bench.relay().drain(bench.stop, patience=timedelta(0))
    assert bench.rows() == before
    assert bench.publisher.closed == 1


@pytest.mark.parametrize("way", ["run", "drain"])
async def test_the_batch_in_flight_is_settled_before_it_stops(bench: Bench, way: str):
    bench.publisher.answer = lambda message: bench.stop.set()
    bench.add(*"abcd")
    done = await getattr(bench.relay(), way)(bench.stop)
    assert bench.publisher.batches == [["a", "b", "c"]]
    assert bench.left() == ["d"]
    if way == "drain":
        assert (done.published, done.blocked, done.stopped, done.is_complete) == (3, 1, True, False)


async def test_a_relay_that_never_reached_its_database_does_not_say_that_it_is_back(bench: Bench):
    engine = process.engine("postgresql://nobody@127.0.0.1:9/nothing", name="unit tests")
    with capture_logs() as said:
        running = asyncio.create_task(Relay(engine, bench.publisher).run(bench.stop))
        while not said:
            await asyncio.sleep(0.01)
        bench.stop.set()
        await running
    assert [line["event"] for line in said] == ["database is away, waiting", "relay stopped"]


async def test_an_error_of_the_publisher_takes_everything_back_and_the_relay_waits(bench: Bench):
    def fail(message: Message) -> None:
        raise ZeroDivisionError

    bench.add("a")
    before = bench.rows()
    bench.publisher.answer = fail
    with pytest.raises(BrokerUnavailable, match="the publisher failed: ZeroDivisionError"):
        await bench.relay().drain(bench.stop, patience=SECOND / 1000)
    assert bench.rows() == before
    assert bench.publisher.closed, "its connection may be in any state"
    with capture_logs() as said:
        running = asyncio.create_task(bench.relay().run(bench.stop))
        while not [line for line in said if line["event"] == "broker is away, waiting"]:
            await asyncio.sleep(0.01)
    assert bench.rows() == before
    bench.publisher.answer = lambda message: None
    while await asyncio.to_thread(bench.left):
        await asyncio.sleep(0.01)
    bench.stop.set()
    await running


@pytest.mark.unexpected
async def test_no_error_around_a_turn_ends_a_relay_and_each_is_told_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outboxkit.relay.relay.UNEXPECTED", Backoff(base=SECOND / 1000, minimum=SECOND / 1000))
    bench.add("a")
    relay = bench.relay()
    troubles: list[BaseException] = [ZeroDivisionError("odd"), asyncio.CancelledError(), KeyError("odd")] * 2
    turn = relay._pipeline.turn

    async def surprising(*given: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return await turn(*given)

    monkeypatch.setattr(relay._pipeline, "turn", surprising)
    with capture_logs() as said:
        running = asyncio.create_task(relay.run(bench.stop))
        while await asyncio.to_thread(bench.left):
            await asyncio.sleep(0.01)
        bench.stop.set()
        await running
    lines = [line["error"] for line in said if line["event"] == "unexpected error, the relay goes on"]
    assert sorted(lines[:3]) == ["CancelledError", "KeyError: 'odd'", "ZeroDivisionError: odd"]


async def test_where_rows_are_not_held_the_application_writes_while_a_server_thinks(bench: Bench):
    """And what it cancels meanwhile stays gone, without a reply."""
    bench.publisher.slow, bench.destination = True, "payments"
    bench.add("a", "b", columns={"destination": "payments", "reply": "CardCharged"})
    publish = bench.publisher.publish

    async def slow(batch: Sequence[Message]) -> Sequence[Receipt]:
        def cancel_and_add() -> None:
            with Session(bench.engine) as session, session.begin():
                session.execute(text("PRAGMA busy_timeout = 0"))
                assert outbox.cancel(session, "a")
            bench.add("meanwhile")

        await asyncio.to_thread(cancel_and_add)
        return await publish(batch)

    bench.publisher.publish = slow
    done = await bench.drain()
    assert bench.publisher.batches == [["a", "b"]]
    assert (done.published, done.blocked) == (2, 0)
    assert sorted(map(str, bench.left())) == sorted(["meanwhile", ids.derive("reply", "b")])
    assert bench.async_engine.pool.checkedout() == 0


async def test_what_is_postponed_is_no_warning_and_comes_again(bench: Bench):
    bench.add("a")
    bench.publisher.answer = lambda message: Receipt(Verdict.POSTPONED, "503", after=SECOND)
    with capture_logs() as said:
        done = await bench.drain()
    assert done.failed == {"OrderConfirmed": (1, "postponed: 503")}
    assert [line["log_level"] for line in said if line.get("message_id") == "a"] == ["info"]
    assert [row["attempts"] for row in bench.rows()] == [0]
    bench.clock.now += SECOND
    bench.publisher.answer = lambda message: None
    assert (await bench.drain()).published == 1
