"""A sharded consumer, with stand-ins for the broker's part and for the consumers of its queues."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import BrokerRefused
from outboxkit.consumer import ShardConsumer, ShardedConsumer
from outboxkit.consumer.membership import Agreement, enter, quit_sharing, write_agreement
from outboxkit.runtime.health import Health
from outboxkit.runtime.outage import Outage
from outboxkit.runtime.sources import Shards
from tests.support.polling import eventually_async

REFUSED = BrokerRefused("access to vhost '/' refused: the user limit is reached", kind="access")


class Part:
    """A consumer and its subscriber in one."""

    on_error = paused = None
    connects = 1
    followed = False

    def __init__(self, broker: "Broker") -> None:
        self.outcomes = Counter[Any]()
        self.broker, self.outage = broker, Outage("consumer", queue="q")
        self.share_reached = self.outage.share_reached

    def hold(self, keys: object) -> None: ...

    def follow(self, move: int, *, is_settled: bool) -> None:
        self.followed = is_settled

    def keys_left(self, move: int) -> tuple[str, ...]:
        self.broker.on_keys()
        return ()

    def health(self) -> Health:
        return Health("consumer")

    async def run(self, stop: asyncio.Event, **_: object) -> None:
        await self.outage.ride_out(self.broker.read, stop)
        self.outage.reached("broker")
        await stop.wait()


class Broker:
    """The broker's part in a change of the number of shards."""

    def __init__(self, *, refuses_first: bool = False, may_read: bool = True) -> None:
        self.binds, self.refuses_first, self.is_full, self.may_read = 0, refuses_first, False, may_read
        self.on_keys: Callable[[], None] = lambda: None

    async def read(self) -> None:
        if not self.may_read:
            raise REFUSED

    async def prepare(self, *_: object) -> bool:
        return False

    async def bind(self, shards: Shards) -> None:
        self.binds += 1
        if self.is_full or self.refuses_first:
            raise REFUSED


def sharded(engine: AsyncEngine, broker: Broker, parts: list[Part]) -> ShardedConsumer:
    def make(queue: str) -> Any:
        parts.append(Part(broker))
        return ShardConsumer(parts[-1], parts[-1])  # type: ignore[arg-type]

    seconds = timedelta(seconds=1)
    return ShardedConsumer(engine, Shards("q", 2), make, broker, handlers=[], publish_timeout=seconds)  # type: ignore[arg-type]


async def test_a_refusal_at_the_start_ends_it(async_engine: AsyncEngine):
    with pytest.raises(BrokerRefused):
        await sharded(async_engine, Broker(refuses_first=True), []).run(asyncio.Event())


async def test_a_refusal_is_waited_out_once_it_has_worked(async_engine: AsyncEngine):
    """As when the broker's connections are used up after its restart."""
    broker, parts, stop = Broker(), list[Part](), asyncio.Event()
    consumer = sharded(async_engine, broker, parts)
    assert consumer.health().servers == {"broker": "its shards are not bound yet"}
    running = asyncio.create_task(consumer.run(stop))
    await eventually_async(
        lambda: asyncio.sleep(0, consumer.health().servers), lambda servers: not any(servers.values())
    )
    assert broker.binds > 0
    broker.is_full = True
    for part in parts:
        part.connects = 2
    await eventually_async(lambda: asyncio.sleep(0, broker.binds), lambda binds: binds >= 3)
    assert not running.done()
    stop.set()
    await running


async def test_a_right_to_read_that_is_missing_at_the_start_ends_it(async_engine: AsyncEngine):
    """The shards are bound already, by the run before it."""
    stop = asyncio.Event()
    before = sharded(async_engine, broker := Broker(), [])
    running = asyncio.create_task(before.run(stop))
    await eventually_async(lambda: asyncio.sleep(0, broker.binds), lambda binds: binds > 0)
    stop.set()
    await running
    with pytest.raises(BrokerRefused):
        await sharded(async_engine, Broker(may_read=False), []).run(asyncio.Event())


@pytest.mark.parametrize(
    ("keys", "left"), [(None, {"q.2.0": None}), (("a",), {"q.2.0": ("a",)}), ((), {})], ids=["unknown", "a", "empty"]
)
async def test_an_old_shard_is_empty_only_if_it_is_known_to_be(
    async_engine: AsyncEngine, keys: tuple[str, ...] | None, left: dict[str, object]
):
    consumer: Any = sharded(async_engine, Broker(), [])
    source = SimpleNamespace(keys_left=lambda _: keys)
    consumer._running["q.2.0"] = SimpleNamespace(shard=SimpleNamespace(source=source))
    elsewhere: dict[str, object] = {"q.2.1": None}
    agreement = Agreement(3, (), {"q.2.0": None, "q.2.1": None}, move=1)
    assert consumer._what_is_left(agreement) == left | elsewhere


async def test_a_stop_while_it_writes_that_an_old_shard_is_empty_leaves_no_marker(async_engine: AsyncEngine):
    """Nobody consumes the old shard after that, so nobody else would ack it."""
    async with async_engine.begin() as connection:
        await enter(connection, "q", "another", 2)
        await write_agreement(connection, "q", Agreement(2, (), {"q.3.0": None}, move=1))
    await quit_sharing(async_engine, "q", "another")
    broker, parts, stop = Broker(), list[Part](), asyncio.Event()
    broker.on_keys = stop.set
    await sharded(async_engine, broker, parts).run(stop)
    assert parts
    assert all(part.followed for part in parts)
