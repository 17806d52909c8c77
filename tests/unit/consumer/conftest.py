"""A consumer on SQLite and the broker inside the process."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Table, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, Reject, inbox_handler, tables
from outboxkit.brokers.memory import MemoryBroker, MemorySubscriber
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.consumer import Concurrency, Consumed, Consumer, ConsumerPolicy
from outboxkit.inbox import handler_of
from tests.unit.shop import NOW, OrderConfirmed, effects, message, rows

AT_ONCE = (timedelta(microseconds=1), timedelta(microseconds=2), timedelta(microseconds=3))
IN_AN_HOUR = (timedelta(hours=1),)


def order(number: int, **more: Any) -> Message:
    """The message of an order."""
    return message(**({"id": f"m-{number}", "payload": b'{"order_id":%d,"total":"1"}' % number} | more))


@inbox_handler("Work")
async def work(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("Fails")
async def fails(session: AsyncSession, event: OrderConfirmed) -> None:
    raise ValueError("boom")


@inbox_handler("Rejects")
async def rejects(session: AsyncSession, event: OrderConfirmed) -> None:
    raise Reject("no such order")


class Bench:
    """What a test needs to have messages handled."""

    def __init__(self, engine: AsyncEngine, *, in_loop: bool = False) -> None:
        self.engine, self.in_loop = engine, in_loop
        self.broker = MemoryBroker()
        self.subscriber = MemorySubscriber(self.broker, "billing", ["#"], AT_ONCE)
        self.stop = asyncio.Event()

    def put(self, *messages: Message | Malformed) -> None:
        for each in messages:
            self.subscriber.queue.put(each)

    def put_redelivered(self, redelivered: Message, times: int = 1) -> None:
        """As if it had been with so many consumers that died."""
        self.put(redelivered)
        for _ in range(times):
            self.subscriber.queue.requeue(self.subscriber.queue.ready.pop())

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """All rows of a table that are committed."""
        return rows(self.engine.url.set(drivername="sqlite").render_as_string(), table)

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters."""
        return self.rows(tables.dead_letter)

    def done(self) -> list[str]:
        """What handlers have done."""
        return [str(row["what"]) for row in self.rows(effects)]

    def ready(self) -> list[str]:
        """The ids of the messages that wait in the queue."""
        return [entry.message.id for entry in self.subscriber.queue.ready]

    def consumer(self, *functions: Callable[..., Any], max_attempts: int = 3, **more: Any) -> Consumer:
        policy = ConsumerPolicy(max_attempts=max_attempts, delays=AT_ONCE)
        handlers = [handler_of(function) for function in functions]
        if self.in_loop:
            handlers = [each if each.is_async else replace(each, in_loop=True) for each in handlers]
        given = {"queue": "billing", "policy": policy, "clock": lambda: NOW, "concurrency": Concurrency(2)} | more
        return Consumer(self.engine, self.subscriber, handlers, **given)

    async def drain(self, *functions: Callable[..., Any], **more: Any) -> Consumed:
        return await self.consumer(*functions, **more).drain(self.stop)

    async def run_until_settled(self, *functions: Callable[..., Any], **more: Any) -> Consumer:
        """Run until nothing is in the queue, in flight or postponed any more."""
        consumer = self.consumer(*functions, **more)
        running = asyncio.create_task(consumer.run(self.stop))
        try:
            async with asyncio.timeout(30):
                while self.subscriber.queue.ready or self.subscriber.unacked or self.subscriber.queue.waiting:
                    await asyncio.wait((running,), timeout=0.005)
        finally:  # also if it never settles: a consumer that is left behind would keep the test from ending
            self.stop.set()
            await running
        return consumer


@pytest.fixture
async def bench(async_engine: AsyncEngine, request: pytest.FixtureRequest) -> Bench:
    """Its plain `def` handlers run in threads, or in the event loop if a test asks for that `in both places`."""
    return Bench(async_engine, in_loop=getattr(request, "param", "thread") == "loop")


in_both_places = pytest.mark.parametrize("bench", ["thread", "loop"], indirect=True)
"""Of a test whose handlers are plain functions."""
