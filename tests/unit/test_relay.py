"""The relay on SQLite with the broker inside the process: what is published, kept, counted and when it is due again."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Message, SchemaError, outbox, process, tables
from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.relay import Relay
from outboxkit.retry import Backoff
from tests.unit.shop import NOW, count, message, rows

SECOND = timedelta(seconds=1)
BACKOFF = Backoff(base=10 * SECOND, cap=timedelta(hours=1), jitter=lambda: 1.0)


class Clock:
    """A clock that stands until it is told otherwise."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Publisher(MemoryPublisher):
    """The publisher of the memory broker, whose connection and answers can be lost."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.batches: list[list[str]] = []
        self.lose: Callable[[Message], bool] = lambda message: False
        self.refuse_to_connect = 0
        self.closed = 0

    async def connect(self) -> None:
        if self.refuse_to_connect:
            self.refuse_to_connect -= 1
            raise BrokerUnavailable("refused")

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        self.batches.append([message.id for message in batch])
        answers = await super().publish(batch)
        lost = Receipt(Verdict.UNKNOWN, "no answer")
        return [lost if self.lose(message) else answer for message, answer in zip(batch, answers, strict=True)]

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def publisher() -> Publisher:
    broker = MemoryBroker()
    broker.queue("billing", ["OrderConfirmed"])
    return Publisher(broker)


@pytest.fixture
def relay(async_engine: AsyncEngine, publisher: Publisher, clock: Clock) -> Relay:
    return Relay(async_engine, publisher, batch_size=3, backoff=BACKOFF, clock=clock, poll_interval=SECOND / 1000)


def add(engine: Engine, *messages: Message, **more: Any) -> None:
    with Session(engine) as session, session.begin():
        outbox.add_all(session, messages, **more)


def left(database_url: str) -> list[object]:
    return [row["message_id"] for row in rows(database_url, tables.outbox)]


async def test_what_is_confirmed_is_deleted(relay: Relay, publisher: Publisher, engine: Engine, database_url: str):
    sent = message(id="a", key="k", headers={"h": 1}, correlation_id="c", causation_id="d", content_encoding="gzip")
    add(engine, sent)
    settled = await relay.publish_batch(NOW)
    assert settled.published == [1]
    assert count(database_url, tables.outbox) == 0
    (arrived,) = publisher._broker.queue("billing", []).ready
    assert arrived == (sent, 1)


async def test_batches_follow_the_order_of_the_positions(relay: Relay, publisher: Publisher, engine: Engine):
    add(engine, *[message(id=id_) for id_ in "abcdefg"])
    done = await relay.drain(asyncio.Event())
    assert publisher.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert (done.published, done.failed, done.held, done.later, done.is_complete) == (7, {}, 0, 0, True)


async def test_nothing_to_do_is_no_batch(relay: Relay, publisher: Publisher):
    settled = await relay.publish_batch(NOW)
    assert (settled.published, settled.failed, settled.unknown, publisher.batches) == ([], [], [], [])
    assert (await relay.drain(asyncio.Event())).is_complete


async def test_an_unroutable_message_stays_with_its_reason_and_is_due_later(
    relay: Relay, clock: Clock, engine: Engine, database_url: str
):
    add(engine, message(id="good"), message(id="bad", type="Unknown"))
    with capture_logs() as said:
        done = await relay.drain(asyncio.Event())
    assert (done.published, done.held, done.later, done.is_complete) == (1, 0, 1, False)
    assert done.failed == {"Unknown": (1, "unroutable: no queue is bound to 'Unknown'")}
    (row,) = rows(database_url, tables.outbox)
    assert (row["message_id"], row["attempts"]) == ("bad", 1)
    assert row["last_error"] == "unroutable: no queue is bound to 'Unknown'"
    assert row["due_at"] == NOW + 10 * SECOND
    (line,) = [line for line in said if line["log_level"] == "warning"]
    assert (line["message_id"], line["type"], line["attempts"]) == ("bad", "Unknown", 1)


async def test_a_failed_message_is_tried_again_when_it_is_due_and_not_before(
    relay: Relay, publisher: Publisher, clock: Clock, engine: Engine, database_url: str
):
    add(engine, message(id="bad", type="Unknown"))
    for attempts, seconds in ((1, 10), (2, 20), (3, 40)):
        await relay.publish_batch(clock.now)
        (row,) = rows(database_url, tables.outbox)
        assert (row["attempts"], row["due_at"]) == (attempts, clock.now + seconds * SECOND)
        clock.now += (seconds - 1) * SECOND
        assert not (await relay.publish_batch(clock.now)).failed
        clock.now += SECOND
    publisher._broker.queue("late", ["Unknown"])
    assert (await relay.publish_batch(clock.now)).published
    assert count(database_url, tables.outbox) == 0


async def test_a_drain_tries_a_failing_message_once(relay: Relay, publisher: Publisher, engine: Engine):
    add(engine, *[message(id=id_, type="Unknown") for id_ in "abcd"])
    done = await relay.drain(asyncio.Event())
    assert publisher.batches == [["a", "b", "c"], ["d"]]
    assert done.failed["Unknown"][0] == 4


async def test_a_delayed_message_waits_for_its_time(relay: Relay, clock: Clock, engine: Engine, database_url: str):
    add(engine, message(id="later"), deliver_at=NOW + SECOND)
    done = await relay.drain(asyncio.Event())
    assert (done.published, done.later, done.is_complete) == (0, 1, True)
    clock.now += SECOND
    assert (await relay.drain(asyncio.Event())).published == 1


async def test_what_has_waited_comes_before_what_is_new(relay: Relay, publisher: Publisher, engine: Engine):
    add(engine, *[message(id=f"new-{number}") for number in range(3)])
    add(engine, *[message(id=f"due-{number}") for number in range(2)], deliver_at=NOW - SECOND)
    await relay.publish_batch(NOW)
    assert publisher.batches == [["new-0", "due-0", "due-1"]]


async def test_an_unanswered_message_counts_nothing(
    relay: Relay, publisher: Publisher, engine: Engine, database_url: str
):
    add(engine, *[message(id=id_) for id_ in "abc"])
    before = rows(database_url, tables.outbox)
    publisher.lose = lambda message: message.id == "b"
    settled = await relay.publish_batch(NOW)
    assert (len(settled.published), settled.failed, settled.unknown) == (2, [], ["no answer"])
    assert rows(database_url, tables.outbox) == [before[1]]


async def test_no_answer_at_all_is_an_outage(relay: Relay, publisher: Publisher, engine: Engine, database_url: str):
    add(engine, *[message(id=id_) for id_ in "abc"])
    before = rows(database_url, tables.outbox)
    publisher.lose = lambda message: True
    with pytest.raises(BrokerUnavailable, match="no answer"):
        await relay.publish_batch(NOW)
    assert rows(database_url, tables.outbox) == before


async def test_an_outage_is_waited_out_without_counting(
    relay: Relay, publisher: Publisher, engine: Engine, database_url: str
):
    add(engine, message(id="a"))
    publisher.refuse_to_connect = 2
    with capture_logs() as said:
        assert (await relay.drain(asyncio.Event())).published == 1
    events = [line["event"] for line in said if line["log_level"] in ("info", "warning")]
    assert events == ["broker is away, waiting", "broker is back, work goes on"]
    assert count(database_url, tables.outbox) == 0


async def test_a_drain_without_patience_raises_the_outage(relay: Relay, publisher: Publisher, engine: Engine):
    add(engine, message(id="a"))
    publisher.refuse_to_connect = 10**6
    with pytest.raises(BrokerUnavailable):
        await relay.drain(asyncio.Event(), patience=timedelta(0))


async def test_an_error_of_the_publisher_takes_everything_back(
    relay: Relay, publisher: Publisher, engine: Engine, database_url: str
):
    def fail(message: Message) -> bool:
        raise ZeroDivisionError

    add(engine, message(id="a"))
    before = rows(database_url, tables.outbox)
    publisher.lose = fail
    with pytest.raises(ZeroDivisionError):
        await relay.publish_batch(NOW)
    assert rows(database_url, tables.outbox) == before


async def test_running_publishes_until_it_is_stopped(
    relay: Relay, publisher: Publisher, engine: Engine, database_url: str
):
    stop = asyncio.Event()
    running = asyncio.create_task(relay.run(stop))
    subscriber = MemorySubscriber(publisher._broker, "billing", [])
    for id_ in "abcde":
        await asyncio.to_thread(add, engine, message(id=id_))  # SQLite has one writer: the relay may have to end first
        assert (await subscriber.receive()).message.id == id_
    stop.set()
    await running
    assert left(database_url) == []
    assert publisher.closed == 1


async def test_the_batch_in_flight_is_settled_before_it_stops(
    relay: Relay, publisher: Publisher, engine: Engine, database_url: str
):
    stop = asyncio.Event()
    publisher.lose = lambda message: bool(stop.set())
    add(engine, *[message(id=id_) for id_ in "abcd"])
    await relay.run(stop)
    assert publisher.batches == [["a", "b", "c"]]
    assert left(database_url) == ["d"]


async def test_a_stopped_drain_says_what_it_left(relay: Relay, publisher: Publisher, engine: Engine):
    stop = asyncio.Event()
    publisher.lose = lambda message: bool(stop.set())
    add(engine, *[message(id=id_) for id_ in "abcd"])
    done = await relay.drain(stop)
    assert (done.published, done.held, done.is_complete) == (3, 1, False)


async def test_missing_tables_are_said_at_the_start(empty_url: str, publisher: Publisher):
    engine = process.engine(empty_url, name="unit tests")
    for work in (Relay(engine, publisher).run, Relay(engine, publisher).drain):
        with pytest.raises(SchemaError, match="outboxkit migrate"):
            await work(asyncio.Event())
    await engine.dispose()


async def test_an_error_that_no_database_can_hold_is_stored_all_the_same(
    relay: Relay, publisher: Publisher, engine: Engine, database_url: str
):
    async def reject(batch: Sequence[Message]) -> list[Receipt]:
        return [Receipt(Verdict.REJECTED, "a\0b\ud800c") for _ in batch]

    add(engine, message(id="a"))
    publisher.publish = reject
    await relay.publish_batch(NOW)
    assert rows(database_url, tables.outbox)[0]["last_error"] == "rejected: a\\0b\\ud800c"


async def test_attempts_go_on_for_ever(relay: Relay, clock: Clock, engine: Engine, database_url: str):
    add(engine, message(id="a", type="Unknown"))
    with engine.begin() as connection:
        connection.execute(update(tables.outbox).values(attempts=10_000))
    assert (await relay.publish_batch(NOW)).failed[0].attempts == 10_001
    assert rows(database_url, tables.outbox)[0]["due_at"] == NOW + timedelta(hours=1)
