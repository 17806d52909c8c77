"""The consumer's slots: how many work at once, when they end, and what a stop leaves behind."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import LogCapture, capture_logs

from outboxkit import BrokerUnavailable, ConfigurationError, Outcome, inbox_handler, tables
from outboxkit.brokers.memory import MemoryDelivery
from outboxkit.consumer import Concurrency, ConsumerPolicy
from outboxkit.consumer.inbox_days import InboxDays
from outboxkit.database import engines
from outboxkit.runtime import process
from tests.unit.consumer.conftest import IN_AN_HOUR, Bench, fails, work
from tests.unit.shop import OrderConfirmed, message


class Gate:
    """A handler that says when it began, and waits until it may end."""

    def __init__(self) -> None:
        self.began = asyncio.Semaphore(0)
        self.open = asyncio.Event()

        @inbox_handler("Gate")
        async def handler(session: AsyncSession, event: OrderConfirmed, message) -> None:
            self.began.release()
            await self.open.wait()

        self.handler = handler


async def test_a_drain_names_what_waits_for_a_retry_and_does_not_wait_for_it(bench: Bench):
    bench.subscriber.delays = IN_AN_HOUR
    bench.put(message(id="a"), message(id="b"))
    done = await bench.drain(fails)
    assert (done.outcomes, done.waiting) == ({Outcome.RETRIED: 2}, 2)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_stopped_drain_leaves_the_rest_and_counts_no_retry_of_it(bench: Bench, *, ordered: bool):
    @inbox_handler("Stops")
    async def stops(session: AsyncSession, event: OrderConfirmed) -> None:
        bench.stop.set()

    bench.put(*[message(id=id_, key="k") for id_ in "abc"])
    done = await bench.drain(stops, concurrency=Concurrency(1, ordered=ordered))
    assert (done.outcomes, done.stopped, done.waiting) == ({Outcome.PROCESSED: 1}, True, 0)
    assert bench.ready() == ["b", "c"]


async def test_a_stop_finishes_what_is_in_flight_and_gives_back_the_rest(bench: Bench):
    gate = Gate()
    bench.put(*[message(id=id_) for id_ in "abc"])
    running = asyncio.create_task(bench.consumer(gate.handler, concurrency=Concurrency(1)).run(bench.stop))
    await gate.began.acquire()
    bench.stop.set()
    gate.open.set()
    with capture_logs() as said:
        await running
    assert [row["message_id"] for row in bench.rows(tables.inbox)] == ["a"]
    assert bench.ready() == ["b", "c"]
    assert not bench.subscriber.unacked
    assert [(line["event"], line["processed"]) for line in said if "stopped" in line["event"]] == [
        ("consumer stopped", 1)
    ]


async def test_a_cancelled_consumer_gives_back_what_it_holds(bench: Bench):
    gate = Gate()
    bench.put(message(id="a"))
    running = asyncio.create_task(bench.consumer(gate.handler).run(bench.stop))
    await gate.began.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await bench.subscriber.close()
    assert bench.ready() == ["a"]
    assert bench.rows(tables.inbox) == []


@pytest.fixture
async def locking(
    bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], object]]:
    """Executes SQL on another connection. While that has locked the database, it is away at once for the bench."""
    monkeypatch.setattr(engines, "SQLITE_BUSY_SECONDS", 0)
    bench.engine = process.engine(database_url, name="unit tests")
    other = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
    yield other.execute
    other.close()
    await bench.engine.dispose()


def when_it_says(**reactions: Callable[[], object]) -> None:
    """Do something at the moment at which a line is logged, so that a test is in step with the consumer."""

    def react(_: object, __: str, line: dict[str, Any]) -> dict[str, Any]:
        for word in reactions.keys() & set(re.findall(r"\w+", line["event"])):
            reactions[word]()
        return line

    structlog.configure(processors=[react, LogCapture()])


async def test_a_database_that_is_away_costs_no_attempt(bench: Bench, locking: Callable[[str], object]):
    when_it_says(connected=lambda: locking("BEGIN IMMEDIATE"), away=lambda: locking("ROLLBACK"))
    bench.put(message())
    consumer = await bench.run_until_settled(fails, max_attempts=2)
    assert consumer.outcomes == {Outcome.RETRIED: 1, Outcome.DEAD: 1}


@pytest.mark.parametrize("batch", [False, True])
async def test_a_stop_during_an_outage_gives_the_messages_back(
    bench: Bench, locking: Callable[[str], object], batch: bool
):
    @inbox_handler("Works", batch=batch)
    def works(session: Session, event: OrderConfirmed) -> None: ...

    when_it_says(connected=lambda: locking("BEGIN IMMEDIATE"), away=bench.stop.set)
    bench.put(message(id="a"), message(id="b"))
    consumer = bench.consumer(works)
    await consumer.run(bench.stop)
    assert (sorted(bench.ready()), consumer.outcomes) == (["a", "b"], {})


@pytest.mark.parametrize("batch", [False, True])
async def test_a_drain_gives_up_an_outage_of_the_database_and_counts_no_attempt(
    bench: Bench, locking: Callable[[str], object], batch: bool
):
    @inbox_handler("Works", batch=batch)
    async def works(session: AsyncSession, event: OrderConfirmed) -> None: ...

    when_it_says(connected=lambda: locking("BEGIN IMMEDIATE"))
    bench.put(*[message(id=id_) for id_ in "abcd"])
    consumer = bench.consumer(works, patience=timedelta(seconds=0.2))
    with pytest.raises(OperationalError, match="locked"):
        await consumer.drain(bench.stop)
    await bench.subscriber.close()
    assert (sorted(bench.ready()), bench.subscriber.queue.waiting, consumer.outcomes) == (["a", "b", "c", "d"], 0, {})


async def test_a_lost_broker_is_connected_to_again_and_the_database_asked_for_the_time_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    original, failures, connects = bench.subscriber.receive, [BrokerUnavailable("gone")] * 2, []

    async def receive(*, wait: bool = True) -> MemoryDelivery | None:
        if failures and wait:
            raise failures.pop()
        return await original(wait=wait)

    async def connect() -> None:
        connects.append("connected")

    async def once(_: InboxDays) -> None:
        connects.append("asked for the time")

    bench.subscriber.receive, bench.subscriber.connect = receive, connect
    bench.put(message())
    monkeypatch.setattr(InboxDays, "once", once)
    with capture_logs() as said:
        done = await bench.drain(work, concurrency=Concurrency(1))
    assert done.outcomes == {Outcome.PROCESSED: 1}
    assert connects == ["asked for the time", *["connected"] * 2] * 3
    assert "broker is away, waiting" in [line["event"] for line in said if line["log_level"] == "warning"]


async def test_a_broker_that_is_back_first_does_not_bring_the_database_back(bench: Bench):
    consumer, original, seen = bench.consumer(work), bench.subscriber.connect, list[list[str]]()
    failures = [BrokerUnavailable("gone")]

    async def connect() -> None:
        if failures:  # meanwhile another task finds that the database is away
            consumer._outage.begins(PoolTimeout("no connection is free"))
            raise failures.pop()
        await original()

    async def start_receiving() -> None:
        seen.append(list(consumer._outage.errors))

    bench.subscriber.connect, bench.subscriber.start_receiving = connect, start_receiving
    await consumer.drain(bench.stop)
    assert seen == [["database"]]
    assert consumer._outage.errors == {}


async def test_an_error_of_the_setup_ends_the_consumer(bench: Bench):
    async def connect() -> None:
        raise ConfigurationError("another kind of queue")

    bench.subscriber.connect = connect
    with pytest.raises(ConfigurationError, match="another kind"):
        await bench.consumer(work).run(bench.stop)


async def test_a_broken_client_library_ends_a_drain_and_nothing_else(bench: Bench):
    original, errors = bench.subscriber.receive, [ZeroDivisionError(), asyncio.CancelledError(), RecursionError()]

    async def receive(*, wait: bool = True) -> MemoryDelivery | None:
        if errors:
            raise errors.pop()
        return await original(wait=wait)

    bench.subscriber.receive = receive
    before = asyncio.all_tasks()
    bench.put(message())
    consumer = await bench.run_until_settled(work, concurrency=Concurrency(5))
    assert (consumer.outcomes, errors) == ({Outcome.PROCESSED: 1}, [])
    errors.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await bench.consumer(work, concurrency=Concurrency(5)).drain(asyncio.Event())
    assert asyncio.all_tasks() == before


async def test_an_ignored_type_is_acked_counted_and_logged_once(bench: Bench):
    bench.put(*(message(id=f"ping-{number}", type="Ping") for number in range(3)), message())
    with capture_logs() as said:
        done = await bench.drain(work, policy=ConsumerPolicy(ignore=("Ping",)))
    assert (done.outcomes, bench.subscriber.unacked) == ({Outcome.IGNORED: 3, Outcome.PROCESSED: 1}, {})
    assert [line["type"] for line in said if line["event"] == "messages of this type are ignored"] == ["Ping"]
