"""One delivery from its arrival to its ack."""

import sqlite3
from datetime import timedelta

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Outcome, Reject, Retry, ids, inbox_handler, outbox, tables
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.consumer import Concurrency
from outboxkit.consumer.transactions import LOST_CONNECTIONS
from tests.unit.consumer.conftest import AT_ONCE, Bench, in_both_places
from tests.unit.shop import NOW, OrderConfirmed, StockChanged, count, effects, message, rows

pytestmark = in_both_places


@inbox_handler("Work")
def work(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("AsyncWork")
async def async_work(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("Fails")
def fails(session: Session, event: OrderConfirmed) -> None:
    work(session, event)
    raise ValueError("boom")


@inbox_handler("Rejects")
def rejects(session: Session, event: OrderConfirmed) -> None:
    work(session, event)
    raise Reject("no such order")


class Flaky:
    """A handler that fails so many times first."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.calls = 0

        @inbox_handler("Flaky")
        def handler(session: Session, event: OrderConfirmed) -> None:
            work(session, event)
            self.calls += 1
            if self.calls <= failures:
                raise error or ValueError("boom")

        self.handler = handler


def dead(database_url: str) -> list[tuple[object, ...]]:
    names = ("message_id", "handler", "reason", "error", "attempts")
    return [tuple(row[name] for name in names) for row in rows(database_url, tables.dead_letter)]


@pytest.mark.parametrize("handler", [work, async_work])
async def test_a_delivery_is_processed_and_then_acked(bench: Bench, database_url: str, handler):
    bench.put(message())
    done = await bench.drain(handler)
    assert (done.outcomes, done.postponed) == ({Outcome.PROCESSED: 1}, 0)
    assert [row["what"] for row in rows(database_url, effects)] == ["order 7"]
    assert count(database_url, tables.inbox) == 1
    assert (list(bench.subscriber.queue.ready), bench.subscriber.unacked) == ([], {})


async def test_a_second_delivery_is_a_duplicate(bench: Bench, database_url: str):
    bench.put(*[message()] * 4)
    assert (await bench.drain(work)).outcomes == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: 3}
    assert count(database_url, effects) == 1


async def test_every_handler_of_an_event_runs_once(bench: Bench, database_url: str):
    bench.put(message(), message())
    assert (await bench.drain(work, async_work)).outcomes == {Outcome.PROCESSED: 2, Outcome.DUPLICATE: 2}
    assert [row["handler"] for row in rows(database_url, tables.inbox)] == ["AsyncWork", "Work"]


async def test_a_message_goes_to_the_handlers_of_its_type_only(bench: Bench, database_url: str):
    @inbox_handler("Stock")
    def stock(session: Session, event: StockChanged) -> None:
        raise AssertionError

    bench.put(message())
    assert (await bench.drain(work, stock)).outcomes == {Outcome.PROCESSED: 1}


async def test_a_failure_is_rolled_back_and_comes_again_until_it_succeeds(bench: Bench, database_url: str):
    flaky = Flaky(2)
    bench.put(message())
    with capture_logs() as said:
        consumer = await bench.run_until_settled(flaky.handler)
    assert consumer.outcomes == {Outcome.RETRIED: 2, Outcome.PROCESSED: 1}
    assert count(database_url, effects) == count(database_url, tables.inbox) == 1
    warned = [line for line in said if line["log_level"] == "warning"]
    assert [(line["attempt"], line["error"]) for line in warned] == [(1, "ValueError: boom"), (2, "ValueError: boom")]
    assert {(line["message_id"], line["handler"], line["queue"]) for line in warned} == {("m-1", "Flaky", "billing")}


async def test_each_attempt_waits_for_its_delay(bench: Bench):
    bench.put(message())
    with capture_logs() as said:
        await bench.run_until_settled(fails, max_attempts=6)
    waits = [line["after"] for line in said if "after" in line]
    steps = [f"{step.total_seconds():g}s" for step in AT_ONCE]
    assert waits == [*steps, steps[-1], steps[-1]]


async def test_a_handler_chooses_its_delay(bench: Bench):
    bench.put(message())
    with capture_logs() as said:
        await bench.run_until_settled(Flaky(1, Retry("later", after=timedelta(days=1))).handler)
    (line,) = [line for line in said if "after" in line]
    assert (line["after"], line["error"]) == (f"{AT_ONCE[-1].total_seconds():g}s", "later")


async def test_the_last_failure_is_buried_with_its_reason(bench: Bench, database_url: str):
    bench.put(message(key="k", headers={"a": 1}))
    consumer = await bench.run_until_settled(fails)
    assert consumer.outcomes == {Outcome.RETRIED: 2, Outcome.DEAD: 1}
    assert dead(database_url) == [("m-1", "Fails", "failed", "ValueError: boom", 3)]
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0
    (row,) = rows(database_url, tables.dead_letter)
    assert (row["payload"], row["key"], row["headers"], row["created_at"]) == (message().payload, "k", b'{"a":1}', NOW)
    assert (row["side"], row["queue"]) == ("inbox", "billing")


async def test_a_rejected_message_is_buried_at_once(bench: Bench, database_url: str):
    bench.put(message())
    assert (await bench.drain(rejects)).outcomes == {Outcome.DEAD: 1}
    assert dead(database_url) == [("m-1", "Rejects", "rejected", "no such order", 1)]
    assert count(database_url, effects) == 0


async def test_a_failing_handler_does_not_repeat_the_others(bench: Bench, database_url: str):
    flaky = Flaky(2)
    bench.put(message())
    consumer = await bench.run_until_settled(work, flaky.handler)
    assert consumer.outcomes == {Outcome.PROCESSED: 2, Outcome.RETRIED: 2, Outcome.DUPLICATE: 2}
    assert count(database_url, effects) == 2


async def test_a_dead_handler_beside_a_retried_one_is_buried_once(bench: Bench, database_url: str):
    bench.put(message())
    consumer = await bench.run_until_settled(rejects, fails)
    assert sorted(dead(database_url)) == [
        ("m-1", "Fails", "failed", "ValueError: boom", 3),
        ("m-1", "Rejects", "rejected", "no such order", 1),
    ]
    assert consumer.outcomes == {Outcome.RETRIED: 2, Outcome.DEAD: 2}


async def test_a_payload_that_is_no_event_is_set_aside(bench: Bench, database_url: str):
    bench.put(message(payload=b'{"order_id": 7}'))
    assert (await bench.drain(work)).outcomes == {Outcome.DEAD: 1}
    ((_, handler, reason, error, attempts),) = dead(database_url)
    assert (handler, reason, attempts) == ("Work", "undecodable", 1)
    assert "`total`" in str(error)


async def test_what_is_no_message_is_set_aside_as_it_came(bench: Bench, database_url: str):
    bench.put(
        Malformed(b"\xff", {"a": b"\xff"}, "", "m-9", None, "x/y", correlation_id="c", reason="the message has no type")
    )
    assert (await bench.drain(work)).outcomes == {Outcome.DEAD: 1}
    assert dead(database_url) == [("m-9", None, "malformed", "the message has no type", 1)]
    (row,) = rows(database_url, tables.dead_letter)
    assert (row["payload"], row["headers"], row["content_type"], row["correlation_id"]) == (
        b"\xff",
        b'{"a":"/w=="}',
        "x/y",
        "c",
    )


async def test_a_type_without_handler_waits_for_another_version_and_is_set_aside_in_the_end(
    bench: Bench, database_url: str
):
    bench.put(message(type="Unknown"), message(id="m-2"))
    consumer = await bench.run_until_settled(work)
    assert consumer.outcomes == {Outcome.RETRIED: 2, Outcome.DEAD: 1, Outcome.PROCESSED: 1}
    assert dead(database_url) == [
        ("m-1", None, "no handler", "no handler here takes 'Unknown'; this consumer has handlers for OrderConfirmed", 3)
    ]


async def test_names_of_another_version_wait_for_it_while_those_of_this_one_run(bench: Bench, database_url: str):
    names = ("Work", *(f"Newer{number}" for number in range(200)))
    bench.subscriber.queue.put(message(), DeliveryHeaders(handlers=names))
    consumer = await bench.run_until_settled(work, async_work)
    assert consumer.outcomes == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: 2, Outcome.RETRIED: 2, Outcome.DEAD: 1}
    assert [row["handler"] for row in rows(database_url, tables.inbox)] == ["Work"]
    ((id_, handler, reason, error, attempts),) = dead(database_url)
    assert (id_, handler, reason, attempts) == ("m-1", None, "no handler", 3)
    assert str(error).startswith("it is for Newer0, Newer1, Newer2, …, and no handler")


@pytest.mark.parametrize(
    "old",
    [
        message(created_at=NOW - timedelta(days=15)),
        message(id=ids.new(at=NOW - timedelta(days=15)), created_at=None),
    ],
)
async def test_a_message_older_than_the_inbox_remembers_is_stale(bench: Bench, database_url: str, old):
    bench.put(old)
    assert (await bench.drain(work)).outcomes == {Outcome.STALE: 1}
    ((_, _, reason, error, _),) = dead(database_url)
    assert reason == "stale"
    assert "2026-02-14" in str(error)
    assert count(database_url, effects) == 0


async def test_an_id_with_an_impossible_time_is_handled(bench: Bench):
    bench.put(message(id="ffffffff-ffff-7fff-bfff-ffffffffffff"))
    assert (await bench.drain(work)).outcomes == {Outcome.PROCESSED: 1}


async def test_what_a_handler_adds_knows_its_cause(bench: Bench, database_url: str):
    @inbox_handler("Sends")
    def sends(session: Session, event: OrderConfirmed) -> None:
        outbox.add(session, event)

    bench.put(message(correlation_id="story"), message(id="m-2"))
    await bench.drain(sends, concurrency=Concurrency(1))
    found = [(row["correlation_id"], row["causation_id"]) for row in rows(database_url, tables.outbox)]
    assert found == [("story", "m-1"), ("m-2", "m-2")]


async def test_an_error_that_no_database_can_hold_is_buried_all_the_same(bench: Bench, database_url: str):
    @inbox_handler("Nasty")
    def nasty(session: Session, event: OrderConfirmed) -> None:
        raise Reject("a\0b\ud800c")

    bench.put(message())
    assert (await bench.drain(nasty)).outcomes == {Outcome.DEAD: 1}
    assert dead(database_url)[0][3] == "a\\0b\\ud800c"


async def test_a_handler_that_loses_every_connection_is_taken_as_the_cause(bench: Bench, database_url: str):
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    flaky = Flaky(10**6, OperationalError("INSERT", {}, busy))
    bench.put(message())
    consumer = await bench.run_until_settled(flaky.handler, max_attempts=2)
    assert consumer.outcomes == {Outcome.RETRIED: 1, Outcome.DEAD: 1}
    assert flaky.calls == 2 * LOST_CONNECTIONS
    assert dead(database_url) == [("m-1", "Flaky", "failed", "OperationalError: database is locked", 2)]


async def test_a_lost_connection_is_no_failure(bench: Bench, database_url: str):
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    flaky = Flaky(LOST_CONNECTIONS - 1, OperationalError("INSERT", {}, busy))
    bench.put(message())
    assert (await bench.drain(flaky.handler)).outcomes == {Outcome.PROCESSED: 1}
    assert count(database_url, effects) == 1
