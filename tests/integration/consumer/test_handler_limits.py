"""The concurrency of a handler on PostgreSQL and RabbitMQ: so many of it run at once, and all of the others."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, event, inbox_handler
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.consumer import Concurrency, Consumer
from outboxkit.inbox import handler_of
from tests.integration.consumer.running_consumer import Ordered, Start, starter
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

FEW = 20


@event("Quick")
@dataclass(frozen=True)
class Quick:
    number: int


@inbox_handler("Quick")
async def quick(session: AsyncSession, event: Quick) -> None: ...


@pytest.fixture
def start(async_pg_engine: AsyncEngine, broker: PlainClient) -> Start:
    return starter(async_pg_engine, broker)


def publish(broker: PlainClient, type_: str, count: int) -> None:
    bodies = [
        (b'{"number":%d}' % number, {"message_id": f"{type_}-{number}", "type": type_}) for number in range(count)
    ]
    broker.publish_all(bodies, topic=type_)


async def test_a_handler_that_hangs_in_its_concurrency_holds_up_no_other_handler(start: Start, broker: PlainClient):
    gate = asyncio.Event()

    @inbox_handler("Hangs", concurrency=1)
    async def hangs(session: AsyncSession, event: Ordered) -> None:
        await gate.wait()

    async with start(hangs, quick) as running:
        await asyncio.to_thread(publish, broker, "Ordered", FEW)
        await asyncio.to_thread(publish, broker, "Quick", FEW)
        try:
            await running.reaches(processed=FEW)
        finally:
            gate.set()


async def test_so_many_of_a_handler_run_at_once_and_all_of_the_others(start: Start, broker: PlainClient):
    running_now, most, gate = 0, 0, asyncio.Event()

    @inbox_handler("Narrow", concurrency=2)
    async def narrow(session: AsyncSession, event: Ordered) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await gate.wait()
        running_now -= 1

    async with start(narrow, quick, concurrency=Concurrency(8)) as running:
        await asyncio.to_thread(publish, broker, "Ordered", FEW)
        await asyncio.to_thread(publish, broker, "Quick", FEW)
        await running.reaches(processed=FEW)
        assert running_now == 2
        gate.set()
        await running.reaches(processed=2 * FEW)
    assert most == 2


async def test_a_drain_waits_for_limits(broker: PlainClient, async_pg_engine: AsyncEngine):
    @inbox_handler("Steady", concurrency=1)
    async def steady(session: AsyncSession, event: Ordered) -> None: ...

    consumer = consumer_of(async_pg_engine, broker, steady)
    assert (await consumer.drain(asyncio.Event())).outcomes == {}
    await asyncio.to_thread(publish, broker, "Ordered", 60)
    done = await consumer_of(async_pg_engine, broker, steady).drain(asyncio.Event())
    assert (dict(done.outcomes), done.waiting) == ({"processed": 60}, 0)


async def test_the_order_of_a_key_is_kept_and_a_failure_is_an_attempt(
    broker: PlainClient, async_pg_engine: AsyncEngine
):
    handled: dict[str, list[int]] = {"a": [], "b": []}
    failed: set[tuple[str, int]] = set()

    @inbox_handler("InOrder", concurrency=1)
    async def in_order(session: AsyncSession, event: Ordered, message: Message) -> None:
        key = message.key or ""
        if event.number == 3 and (key, 3) not in failed:
            failed.add((key, 3))
            raise ValueError("once")
        handled[key].append(event.number)

    def consumer() -> Consumer:
        return consumer_of(async_pg_engine, broker, in_order, ordered=True)

    assert (await consumer().drain(asyncio.Event())).outcomes == {}
    for number in range(10):
        for key in handled:
            headers = {"outboxkit-key": key}
            body = b'{"number":%d}' % number
            await asyncio.to_thread(
                broker.publish, body, topic="Ordered", message_id=f"{key}{number}", type="Ordered", headers=headers
            )
    stop, running = asyncio.Event(), consumer()
    task = asyncio.create_task(running.run(stop))
    await eventually_async(lambda: asyncio.sleep(0, running.outcomes["processed"]), lambda count: count == 20)
    stop.set()
    await task
    assert handled == {key: list(range(10)) for key in handled}
    assert running.outcomes["retried"] == 2


def consumer_of(engine: AsyncEngine, broker: PlainClient, function: Any, *, ordered: bool = False) -> Consumer:
    subscriber = RabbitSubscriber(
        broker.url, broker.queue, exchange=broker.exchange, topics=["Ordered"], delays=DELAYS, ordered=ordered
    )
    concurrency = Concurrency(4, ordered=ordered)
    return Consumer(engine, subscriber, [handler_of(function)], queue=broker.queue, concurrency=concurrency)
