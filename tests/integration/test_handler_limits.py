"""Limits of handlers on PostgreSQL and RabbitMQ: what waits for them holds up nothing else, and nothing is lost."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, event, inbox_handler
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.consumer import Concurrency, Consumer
from outboxkit.inbox import handler_of
from tests.delays import DELAYS, WAITING
from tests.integration.running_consumer import Billed, Ordered, Running, Start, processed, starter
from tests.plain_client import PlainClient, Received
from tests.polling import eventually_async

MANY, FEW = 200, 20


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


async def test_what_waits_for_a_rate_holds_up_no_other_handler_and_is_not_lost(
    start: Start, broker: PlainClient, pg_engine: Engine
):
    @inbox_handler("Slow", rate="1/h")
    async def slow(session: AsyncSession, event: Ordered) -> None: ...

    async with start(slow, quick) as running:
        await asyncio.to_thread(publish, broker, "Ordered", MANY)
        await asyncio.to_thread(publish, broker, "Quick", FEW)
        await running.reaches(processed=FEW + 1)
        assert dict(running.consumer.outcomes) == {"processed": FEW + 1}
    handled = Counter(name for name, _ in processed(pg_engine))
    assert handled == {"Quick": FEW, "Slow": 1}
    queues = [broker.queue, *WAITING]
    left = list[Received]()

    async def collect() -> int:  # those whose short delay ends meanwhile go from one queue to the other
        for queue in queues:
            left.extend(await asyncio.to_thread(broker.take_all, queue))
        return len(left)

    await eventually_async(collect, lambda count: count >= MANY - 1)
    assert len({each.properties.message_id for each in left}) == len(left) == MANY - 1
    headers = {name for each in left for name in each.properties.headers or ()}
    assert "outboxkit-attempt" not in headers, "waiting is no attempt"


async def test_what_waits_for_a_rate_is_as_suspect_as_before(start: Start, broker: PlainClient):
    """A message that came back may have killed a process; once it has waited for its turn, it may do so again."""

    @inbox_handler("Slow", rate="1/h")
    async def slow(session: AsyncSession, event: Ordered) -> None: ...

    async with start(slow):
        pass
    await asyncio.to_thread(publish, broker, "Ordered", MANY)
    subscriber = RabbitSubscriber(
        broker.url, broker.queue, exchange=broker.exchange, topics=["Ordered"], delays=DELAYS, prefetch=MANY
    )
    await subscriber.connect()
    for _ in range(MANY):
        await subscriber.receive()
    await subscriber.close()
    async with start(slow):
        await eventually_async(lambda: asyncio.to_thread(lambda: sum(map(broker.depth, WAITING))))
    waiting = [each for queue in WAITING for each in await asyncio.to_thread(broker.take_all, queue)]
    assert waiting
    assert {(each.properties.headers or {}).get("outboxkit-redeliveries") for each in waiting} == {1}


async def test_a_handler_that_hangs_in_its_concurrency_holds_up_no_other_handler(start: Start, broker: PlainClient):
    gate = asyncio.Event()

    @inbox_handler("Hangs", concurrency=1)
    async def hangs(session: AsyncSession, event: Ordered) -> None:
        await gate.wait()

    async with start(hangs, quick) as running:
        await asyncio.to_thread(publish, broker, "Ordered", MANY)
        await asyncio.to_thread(publish, broker, "Quick", FEW)
        try:
            await running.reaches(processed=FEW)
        finally:
            gate.set()


async def test_several_handlers_with_limits_do_not_fill_the_prefetch(broker: PlainClient, async_pg_engine: AsyncEngine):
    @inbox_handler("First", rate="1/h")
    async def first(session: AsyncSession, event: Ordered) -> None: ...

    @inbox_handler("Second", rate="1/h")
    async def second(session: AsyncSession, event: Billed) -> None: ...

    handlers, topics = [handler_of(each) for each in (first, second, quick)], ["Ordered", "Billed", "Quick"]
    prefetch = Concurrency().prefetch(handlers)
    subscriber = RabbitSubscriber(
        broker.url, broker.queue, exchange=broker.exchange, topics=topics, delays=DELAYS, prefetch=prefetch
    )
    running = Running(Consumer(async_pg_engine, subscriber, handlers, queue=broker.queue))
    task = asyncio.create_task(running.consumer.run(running.stop))
    await eventually_async(lambda: asyncio.to_thread(lambda: broker.has_queue() and broker.consumers()))
    for type_, count in (("Ordered", MANY), ("Billed", MANY), ("Quick", FEW)):
        await asyncio.to_thread(publish, broker, type_, count)
    try:
        await running.reaches(processed=FEW + 2)
    finally:
        running.stop.set()
        await task


@pytest.mark.parametrize("batch", [False, True], ids=["singly", "batch"])
async def test_a_rate_counts_messages(start: Start, broker: PlainClient, pg_engine: Engine, *, batch: bool):
    @inbox_handler("Hourly", rate="1/h", batch=batch)
    async def hourly(session: AsyncSession, event: Ordered) -> None: ...

    async with start(hourly, quick) as running:
        await asyncio.to_thread(publish, broker, "Ordered", FEW)
        await running.reaches(processed=1)
        await asyncio.to_thread(publish, broker, "Quick", FEW)
        await running.reaches(processed=FEW + 1)
    assert await asyncio.to_thread(broker.depth) == FEW - 1


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
    @inbox_handler("Steady", rate="40/s", concurrency=1)
    async def steady(session: AsyncSession, event: Ordered) -> None: ...

    consumer = consumer_of(async_pg_engine, broker, steady)
    assert (await consumer.drain(asyncio.Event())).outcomes == {}
    await asyncio.to_thread(publish, broker, "Ordered", 60)
    done = await consumer_of(async_pg_engine, broker, steady).drain(asyncio.Event())
    assert (dict(done.outcomes), done.postponed) == ({"processed": 60}, 0)


async def test_the_order_of_a_key_is_kept_and_a_failure_is_an_attempt(
    broker: PlainClient, async_pg_engine: AsyncEngine
):
    handled: dict[str, list[int]] = {"a": [], "b": []}
    failed: set[tuple[str, int]] = set()

    @inbox_handler("InOrder", rate="100/s")
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
