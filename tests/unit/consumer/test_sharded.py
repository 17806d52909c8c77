"""A sharded consumer, with stand-ins for the broker's part and for the consumers of its queues."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import BrokerRefused
from outboxkit.consumer import ShardConsumer, ShardedConsumer
from outboxkit.runtime.health import Health
from outboxkit.runtime.sources import Shards
from tests.support.polling import eventually_async

REFUSED = BrokerRefused("access to vhost '/' refused: the user limit is reached", kind="access")


class Part:
    """A consumer and its subscriber in one."""

    on_error = paused = None
    connects = 1

    def __init__(self) -> None:
        self.outcomes = Counter[Any]()
        self.reached: tuple[str, ...] = ()

    def has_reached(self, *servers: str) -> None:
        self.reached = servers

    def hold(self, keys: object) -> None: ...

    def follow(self, move: int, *, is_settled: bool) -> None: ...

    def keys_left(self, move: int) -> tuple[str, ...]:
        return ()

    def health(self) -> Health:
        return Health("consumer")

    async def run(self, stop: asyncio.Event, **_: object) -> None:
        await stop.wait()


class Broker:
    """The broker's part in a change of the number of shards."""

    def __init__(self, *, refuses_first: bool) -> None:
        self.binds, self.refuses_first, self.is_full = 0, refuses_first, False

    async def prepare(self, *_: object) -> bool:
        return False

    async def bind(self, shards: Shards) -> None:
        self.binds += 1
        if self.is_full or self.refuses_first:
            raise REFUSED


def sharded(engine: AsyncEngine, broker: Broker, parts: list[Part]) -> ShardedConsumer:
    def make(queue: str) -> Any:
        parts.append(Part())
        return ShardConsumer(parts[-1], parts[-1])  # type: ignore[arg-type]

    seconds = timedelta(seconds=1)
    return ShardedConsumer(engine, Shards("q", 2), make, broker, handlers=[], publish_timeout=seconds)  # type: ignore[arg-type]


async def test_a_refusal_at_the_start_ends_it(async_engine: AsyncEngine):
    with pytest.raises(BrokerRefused):
        await sharded(async_engine, Broker(refuses_first=True), []).run(asyncio.Event())


async def test_a_refusal_is_waited_out_once_it_has_worked(async_engine: AsyncEngine):
    """As when the broker's connections are used up after its restart."""
    broker, parts, stop = Broker(refuses_first=False), list[Part](), asyncio.Event()
    running = asyncio.create_task(sharded(async_engine, broker, parts).run(stop))
    await eventually_async(lambda: asyncio.sleep(0, broker.binds), lambda binds: binds > 0)
    assert parts[0].reached == ("database",), "it was made before the first bind"
    broker.is_full = True
    for part in parts:
        part.connects = 2
    await eventually_async(lambda: asyncio.sleep(0, broker.binds), lambda binds: binds >= 3)
    assert not running.done()
    stop.set()
    await running
