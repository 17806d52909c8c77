"""A consumer that is paused, on SQLite; tests/integration/operators/test_pausing.py has one that is paused at work."""

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import inbox_handler
from outboxkit.brokers.memory import MemorySubscriber
from outboxkit.consumer import Consumer, Consumers
from outboxkit.inbox import handler_of
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.runtime.workers import CONSUMER
from tests.unit.consumer.conftest import Bench
from tests.unit.shop import NOW, OrderConfirmed, message


async def begin(engine: AsyncEngine, queue: str = "billing") -> None:
    async with engine.begin() as connection:
        await connection.run_sync(lambda plain: pause_process(plain, CONSUMER, queue, why="a move", by="ada"))


async def end(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(lambda plain: resume_process(plain, CONSUMER, "billing", by="ada"))


def total(consumer: Consumer) -> int:
    return consumer.outcomes.total()


@inbox_handler("Count")
async def count(session: AsyncSession, event: OrderConfirmed) -> None: ...


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
