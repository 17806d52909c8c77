"""A relay that is paused: it settles what is in flight, holds nothing, and goes on where it was."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from structlog.testing import capture_logs

from outboxkit import Message
from outboxkit.brokers import Receipt
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.relay import Relay
from outboxkit.runtime.workers import RELAY
from tests.support.polling import eventually_async
from tests.unit.relay.conftest import Bench, Publisher


def begin(bench: Bench, name: str = "default") -> None:
    with bench.engine.begin() as connection:
        pause_process(connection, RELAY, name, why="a move", by="ada")


def end(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        resume_process(connection, RELAY, "default", by="ada")


def reader(read: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def asked() -> Any:
        return read()

    return asked


async def logged(said: list[Any], event: str) -> None:
    await eventually_async(reader(lambda: [line for line in said if line["event"] == event]))


def pausing(bench: Bench) -> Relay:
    """A relay that is paused, and sees it, while it publishes its first batch."""

    class Pausing(Publisher):
        slow = True  # so that the one writer is free meanwhile

        async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
            if not self.batches:
                await asyncio.to_thread(begin, bench)
                await eventually_async(reader(lambda: relay._watch.current))
            return await super().publish(batch)

    bench.publisher = Pausing(bench.publisher.broker)
    relay = bench.relay()
    return relay


async def test_the_batch_in_flight_is_settled_and_no_attempt_is_counted(bench: Bench):
    """The pause begins, and is seen, while the first batch of three is published."""
    bench.add(*"abcdef")
    relay = pausing(bench)
    with capture_logs() as said:
        running = asyncio.create_task(relay.run(bench.stop))
        await logged(said, "relay paused")
        assert bench.left() == ["d", "e", "f"]
        bench.stop.set()
        await running
    assert bench.publisher.batches == [["a", "b", "c"]]
    assert {row["attempts"] for row in bench.rows()} == {0}


async def test_a_drain_of_a_paused_relay_says_so_and_publishes_nothing(bench: Bench):
    begin(bench)
    bench.add("a")
    done = await bench.drain()
    assert done.paused is not None
    assert (done.paused.why, done.published, done.blocked, done.is_complete) == ("a move", 0, 1, False)
    end(bench)
    assert (await bench.drain()).is_complete


async def test_a_drain_ends_when_its_relay_is_paused(bench: Bench):
    bench.add(*"abcdef")
    done = await pausing(bench).drain(bench.stop)
    assert (done.published, done.blocked, done.is_complete) == (3, 3, False)
    assert done.paused is not None


async def test_an_outage_during_a_pause_is_not_looked_for(bench: Bench):
    begin(bench)
    bench.publisher.refuse_to_connect = 1
    bench.add("a")
    with capture_logs() as said:
        relay = asyncio.create_task(bench.relay().run(bench.stop))
        await logged(said, "relay paused")
        assert bench.publisher.refuse_to_connect == 1
        await asyncio.to_thread(end, bench)
        await logged(said, "broker is back, work goes on")
        bench.stop.set()
        await relay
    assert [line["event"] for line in said if line["log_level"] == "warning"] == ["broker is away, waiting"]
