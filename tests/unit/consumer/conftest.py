"""A consumer on SQLite and the broker inside the process."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import Message
from outboxkit.brokers.memory import MemoryBroker, MemorySubscriber
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.consumer import Concurrency, Consumed, Consumer, ConsumerPolicy
from outboxkit.inbox import handler_of
from tests.unit.shop import NOW

AT_ONCE = (timedelta(microseconds=1), timedelta(microseconds=2), timedelta(microseconds=3))


class Bench:
    """What a test needs to have messages handled."""

    def __init__(self, engine: AsyncEngine, *, in_loop: bool = False) -> None:
        self.engine, self.in_loop = engine, in_loop
        self.broker = MemoryBroker()
        self.subscriber = MemorySubscriber(self.broker, "billing", ["#"], AT_ONCE)
        self.stop = asyncio.Event()

    def put(self, *messages: Message | Malformed) -> None:
        for message in messages:
            self.subscriber.queue.put(message)

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
