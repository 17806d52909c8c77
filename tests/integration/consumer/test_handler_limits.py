"""The concurrency of a handler on PostgreSQL and RabbitMQ: so many of it run at once, and all of the others."""

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, inbox_handler
from outboxkit.consumer import Concurrency
from tests.integration.consumer.running_consumer import Billed, Ordered, Start, consumer_of, declare, publish, starter
from tests.support.plain_client import PlainClient

FEW = 20


@inbox_handler("Quick")
async def quick(session: AsyncSession, event: Billed) -> None: ...


def publish_all(broker: PlainClient, type_: str, count: int) -> None:
    bodies = [
        (b'{"number":%d}' % number, {"message_id": f"{type_}-{number}", "type": type_}) for number in range(count)
    ]
    broker.publish_all(bodies, topic=type_)


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
        await asyncio.to_thread(publish_all, broker, "Ordered", FEW)
        await asyncio.to_thread(publish_all, broker, "Billed", FEW)
        try:
            await running.reaches(processed=FEW)  # though as many hang as may
            assert running_now == 2
        finally:
            gate.set()
        await running.reaches(processed=2 * FEW)
    assert most == 2


async def test_a_drain_waits_for_limits(broker: PlainClient, async_pg_engine: AsyncEngine):
    @inbox_handler("Steady", concurrency=1)
    async def steady(session: AsyncSession, event: Ordered) -> None: ...

    await declare(broker, {"Ordered"})
    await asyncio.to_thread(publish_all, broker, "Ordered", 60)
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

    await declare(broker, {"Ordered"}, ordered=True)
    for number in range(10):
        for key in handled:
            publish(broker, number, f"{key}{number}", headers={"outboxkit-key": key})
    async with starter(async_pg_engine, broker, ordered=True)(in_order) as running:
        await running.reaches(processed=20, retried=2)
    assert handled == {key: list(range(10)) for key in handled}
