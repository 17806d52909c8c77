"""A consumer that is paused, on SQLite; tests/integration/operators/test_pausing.py has one that is paused at work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import inbox_handler
from outboxkit.brokers.memory import MemorySubscriber
from outboxkit.consumer import Consumer, Consumers
from outboxkit.inbox import handler_of
from outboxkit.runtime.pauses import CONSUMER, pause_process, resume_process
from tests.support.polling import eventually_async
from tests.unit.consumer.conftest import Bench
from tests.unit.shop import NOW, OrderConfirmed, message


async def begin(engine: AsyncEngine, queue: str = "billing") -> None:
    async with engine.begin() as connection:
        await connection.run_sync(lambda plain: pause_process(plain, CONSUMER, queue, why="a move", by="ada"))


async def end(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(lambda plain: resume_process(plain, CONSUMER, "billing", by="ada"))


def reader(read: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def asked() -> Any:
        return read()

    return asked


async def logged(said: list[Any], event: str) -> None:
    await eventually_async(reader(lambda: [line for line in said if line["event"] == event]))


def total(consumer: Consumer) -> int:
    return consumer.outcomes.total()


@inbox_handler("Count")
async def count(session: AsyncSession, event: OrderConfirmed) -> None: ...


async def test_a_consumer_that_starts_paused_handles_when_it_is_resumed(bench: Bench):
    await begin(bench.engine)
    bench.put(*(message(id=id_) for id_ in "abc"))
    consumer = bench.consumer(count)
    with capture_logs() as said:
        running = asyncio.create_task(consumer.run(bench.stop))
        await logged(said, "consumer paused")
        assert (total(consumer), len(bench.subscriber.queue.ready)) == (0, 3)
        await end(bench.engine)
        await eventually_async(reader(lambda: total(consumer)), lambda handled: handled == 3)
        bench.stop.set()
        await running
    assert {str(outcome): number for outcome, number in consumer.outcomes.items()} == {"processed": 3}
    assert [line for line in said if line["log_level"] == "warning"] == []


async def test_a_stop_while_paused_is_clean(bench: Bench):
    await begin(bench.engine)
    bench.put(message())
    with capture_logs() as said:
        running = asyncio.create_task(bench.consumer(count).run(bench.stop))
        await logged(said, "consumer paused")
        bench.stop.set()
        await running
    assert said[-1]["event"] == "consumer stopped"
    assert len(bench.subscriber.queue.ready) == 1


async def test_a_drain_of_a_paused_queue_says_so(bench: Bench):
    await begin(bench.engine)
    bench.put(message())
    done = await bench.drain(count)
    assert done.paused is not None
    assert (done.paused.name, done.outcomes.total(), len(bench.subscriber.queue.ready)) == ("billing", 0, 1)
    await end(bench.engine)
    assert (await bench.drain(count)).paused is None


async def test_a_drain_of_several_queues_says_that_one_is_paused(bench: Bench):
    await begin(bench.engine, "mails")
    bench.put(message())
    mails = Consumer(
        bench.engine,
        MemorySubscriber(bench.broker, "mails", ["#"]),
        [handler_of(count)],
        queue="mails",
        clock=lambda: NOW,
    )
    done = await Consumers([bench.consumer(count), mails]).drain(bench.stop)
    assert done.paused is not None
    assert (done.paused.name, done.outcomes.total()) == ("mails", 1)
