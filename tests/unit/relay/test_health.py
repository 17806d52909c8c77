"""A relay's health: a publish beyond its limit, and a broker that is away."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from outboxkit import Message
from outboxkit.brokers import Receipt
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher
from outboxkit.relay import Relay
from outboxkit.runtime import admin, settings
from outboxkit.runtime.health import Health
from outboxkit.telemetry import scrape
from tests.support.admin_client import Answered, get
from tests.support.polling import eventually_async
from tests.unit.relay.conftest import Bench


class Silent(MemoryPublisher):
    """A publisher that hangs beyond its own time limit."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.answers = asyncio.Event()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        await self.answers.wait()
        return await super().publish(batch)


async def test_a_relay_that_is_stuck_on_a_publish_is_not_live(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admin, "LEAVING", timedelta())
    monkeypatch.setattr(scrape, "prepare", lambda: None)
    bench.add("a")
    publisher, stop = Silent(), asyncio.Event()
    relay = Relay(bench.async_engine, publisher)
    limited = settings.load({"database_url": bench.url, "publish_timeout": "10ms", "admin_port": "0"})
    async with admin.serving(limited, relay) as address:
        assert address is not None

        async def live() -> Answered:
            return await asyncio.to_thread(get, address, "/livez")

        running = asyncio.create_task(relay.run(stop))
        hung = await eventually_async(live, lambda answer: answer.status == 503)
        assert hung.lines[1].startswith("one publish has lasted ")
        publisher.answers.set()
        await eventually_async(live, lambda answer: answer.status == 200)
        stop.set()
        await running
    assert relay.health().publishing is None


async def test_a_relay_tells_its_broker_until_it_is_back(bench: Bench):
    bench.publisher.refuse_to_connect = 1_000_000
    relay, stop = bench.relay(), asyncio.Event()
    running = asyncio.create_task(relay.run(stop))

    async def state() -> Health:
        return relay.health()

    away = await eventually_async(state, lambda health: health.servers["broker"] is not None)
    assert (away.servers, away.without_turn) == ({"broker": "BrokerUnavailable: refused", "database": None}, None)
    bench.publisher.refuse_to_connect = 0
    back = await eventually_async(state, lambda health: health.servers["broker"] is None)
    assert back.worker == "relay"
    stop.set()
    await running
    assert relay.health().without_turn is None


async def test_a_relay_tells_an_outage_of_its_database(bench: Bench):
    relay = bench.relay()
    relay._outage.begins(DBAPIError("", None, Exception("read-only"), connection_invalidated=True))
    assert "read-only" in str(relay.health().servers["database"])
