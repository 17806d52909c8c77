"""Several queues in one process, on PostgreSQL and RabbitMQ."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import inbox, inbox_handler
from outboxkit.consumer import Consumers
from outboxkit.inbox import Handler
from outboxkit.operators.status import Figures, read_figures
from outboxkit.runtime import compose, settings
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.process import engine as make_engine
from tests.integration.consumer.running_consumer import Ordered, processed
from tests.support.delays import DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

COUNT = 6


class Two:
    """A process that consumes two queues, to which one message is one for each."""

    def __init__(self, broker: PlainClient, database_url: str) -> None:
        self.broker, self.database_url = broker, database_url
        self.first, self.second = (broker.own(f"{broker.queue}-{name}") for name in ("first", "second"))
        self.stop = asyncio.Event()

    def handlers(self, first: Callable[..., Any], second: Callable[..., Any]) -> list[Handler]:
        return [
            replace(inbox.handler_of(first), name="First", queue=self.first),
            replace(inbox.handler_of(second), name="Second", queue=self.second),
        ]

    @asynccontextmanager
    async def consumers(self, *functions: Callable[..., Any], **more: str) -> AsyncIterator[Consumers]:
        options = {
            "database_url": self.database_url,
            "broker_url": self.broker.url,
            "exchange": self.broker.exchange,
            "queue": f"{self.first}:2,{self.second}:3",
            "retry_delays": DELAYS_TEXT,
        }
        async with compose.consumer(settings.load(options | more), self.handlers(*functions)) as made:
            assert isinstance(made, Consumers)
            yield made

    async def declare(self) -> None:
        async with self.consumers(work, work) as consumers:
            assert (await consumers.drain(asyncio.Event())).outcomes == {}

    def publish(self) -> None:
        for number in range(COUNT):
            body = b'{"number":%d}' % number
            self.broker.publish(body, topic="Ordered", message_id=f"m-{number}", type="Ordered")

    async def depths(self) -> list[int]:
        return [await asyncio.to_thread(self.broker.depth, name) for name in (self.first, self.second)]


@inbox_handler("Work")
async def work(session: AsyncSession, event: Ordered) -> None: ...


@pytest.fixture
def two(broker: PlainClient, postgresql_url: str) -> Two:
    return Two(broker, postgresql_url)


async def test_no_queue_waits_for_another_one_and_each_has_its_handlers_and_its_concurrency(
    two: Two, pg_engine: Engine
):
    gate, started = asyncio.Event(), list[int]()

    @inbox_handler("Waits")
    async def waits(session: AsyncSession, event: Ordered) -> None:
        started.append(event.number)
        await gate.wait()

    await two.declare()
    two.publish()
    async with two.consumers(waits, work) as consumers:
        running = asyncio.create_task(consumers.run(two.stop))
        await eventually_async(lambda: asyncio.sleep(0, consumers.outcomes["processed"]), lambda count: count == COUNT)
        await eventually_async(lambda: asyncio.sleep(0, len(started)), lambda count: count == 2)
        two.stop.set()
        await eventually_async(two.depths, lambda depths: depths == [COUNT - 2, 0])
        assert not running.done(), "it waits for what runs"
        gate.set()
        await running
        assert dict(consumers.outcomes) == {"processed": COUNT + 2}
    async with two.consumers(work, work) as consumers:
        assert dict((await consumers.drain(asyncio.Event())).outcomes) == {"processed": COUNT - 2}
    assert processed(pg_engine) == [(name, f"m-{number}") for name in ("First", "Second") for number in range(COUNT)]


async def test_status_knows_both_queues_of_a_process(two: Two):
    await two.declare()
    two.publish()
    async with two.consumers(work, work) as consumers:
        running = asyncio.create_task(consumers.run(two.stop))
        await eventually_async(
            lambda: asyncio.sleep(0, consumers.outcomes["processed"]), lambda count: count == 2 * COUNT
        )
        engine = make_engine(two.database_url, name="test")

        async def read() -> Figures:
            async with engine.connect() as connection:
                return await connection.run_sync(read_figures, utc_now())

        report = await eventually_async(read, lambda figures: len(figures.workers) == 2)
        await engine.dispose()
        two.stop.set()
        await running
    assert {name: count.value for name, count in report.inbox.by_handler.items()} == {"First": COUNT, "Second": COUNT}
    assert {(each.kind, each.name) for each in report.workers} == {("consumer", two.first), ("consumer", two.second)}


async def test_a_process_that_may_wait_no_longer_gives_back_what_runs_in_all_queues(two: Two, pg_engine: Engine):
    started: list[int] = []

    @inbox_handler("Hangs")
    async def hangs(session: AsyncSession, event: Ordered) -> None:
        started.append(event.number)
        await asyncio.Event().wait()

    await two.declare()
    two.publish()
    async with two.consumers(hangs, hangs) as consumers:
        running = asyncio.create_task(consumers.run(two.stop))
        await eventually_async(lambda: asyncio.sleep(0, len(started)), lambda count: count == 5)
        two.stop.set()
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()
    await eventually_async(two.depths, lambda depths: depths == [COUNT, COUNT])
    assert processed(pg_engine) == []
