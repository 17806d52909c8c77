"""A consumer that is paused, on SQLite; tests/integration/operators/test_pausing.py has one that is paused at work."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import inbox_handler
from outboxkit.brokers.memory import MemoryDelivery, MemorySubscriber
from outboxkit.consumer import Concurrency, Consumer, Consumers
from outboxkit.inbox import handler_of
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.runtime.workers import CONSUMER
from tests.support.polling import eventually_async
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


async def test_a_drain_goes_on_after_a_pause_that_ended_while_its_handlers_did(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    ack = MemoryDelivery.ack

    async def is_paused() -> bool:
        return consumer.paused is not None

    async def ack_after_a_pause(delivery: MemoryDelivery) -> None:  # a handler's own transaction would lock out both
        monkeypatch.setattr(MemoryDelivery, "ack", ack)
        await begin(bench.engine)
        await eventually_async(is_paused)
        await end(bench.engine)
        await eventually_async(is_paused, lambda paused: not paused)
        await ack(delivery)

    monkeypatch.setattr(MemoryDelivery, "ack", ack_after_a_pause)
    bench.put(*(message(id=id_) for id_ in "abc"))
    consumer = bench.consumer(count, concurrency=Concurrency(1))
    done = await consumer.drain(bench.stop)
    assert (done.outcomes.total(), done.paused, len(bench.subscriber.queue.ready)) == (3, None, 0)


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
