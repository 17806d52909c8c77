"""What relay, consumer, retention, requests and effects record, on SQLite and the broker inside the process."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import BrokerUnavailable, inbox_handler
from outboxkit.brokers import Receipt, Verdict
from outboxkit.telemetry import catalogue
from tests.support.measured import Measured
from tests.support.polling import eventually_async
from tests.unit.consumer.conftest import Bench as Consuming
from tests.unit.relay.conftest import Bench as Relaying
from tests.unit.shop import NOW, OrderConfirmed, message

HOUR = timedelta(hours=1)


@pytest.fixture
def relaying(engine: Engine, async_engine: AsyncEngine, database_url: str) -> Relaying:
    return Relaying(engine, async_engine, database_url)


@pytest.fixture
async def consuming(async_engine: AsyncEngine) -> Consuming:
    return Consuming(async_engine)


async def test_a_relay_records_the_fate_of_each_message(relaying: Relaying, measured: Measured):
    answers = {"b": Verdict.REJECTED, "c": Verdict.POSTPONED, "d": Receipt(Verdict.REJECTED, "no", final=True)}
    relaying.publisher.answer = lambda sent: answers.get(sent.id)
    relaying.add("a", "b", "c", "d", "e")
    relaying.add("f", type="Unwanted")
    relaying.add("g", columns={"expires_at": NOW - HOUR})
    relaying.add("h", type="Dull", columns={"discard_unroutable": True})
    await relaying.drain(batch_size=100)
    assert measured.of(catalogue.RELAY_MESSAGES, "type", "outcome") == {
        ("OrderConfirmed", "published"): 2,
        ("OrderConfirmed", "rejected"): 1,
        ("OrderConfirmed", "postponed"): 1,
        ("OrderConfirmed", "dead"): 2,
        ("Unwanted", "unroutable"): 1,
        ("Dull", "discarded"): 1,
    }
    assert measured.of(catalogue.RELAY_MESSAGES, "destination") == {"default": 8}
    assert measured.of(catalogue.SENT, catalogue.ERROR) == {"": 2, "rejected": 2, "postponed": 1, "unroutable": 2}
    assert measured.of(catalogue.SENT, catalogue.SYSTEM) == {"memory": 7}
    assert measured.of(catalogue.RELAY_LAG) == {"": 2}
    assert measured.of(catalogue.RELAY_STEP_DURATION, "step") == {"claim": 1, "publish": 1, "settle": 1}


async def test_a_relay_records_an_outage(relaying: Relaying, measured: Measured):
    def lose(_: Any) -> None:
        raise BrokerUnavailable("gone")

    relaying.add("a")
    relaying.publisher.answer = lose
    running = asyncio.create_task(relaying.relay().run(relaying.stop))

    async def connected() -> dict[Any, float]:
        return measured.of(catalogue.RELAY_CONNECTED, "server")

    await eventually_async(connected, lambda found: found == {"broker": 0, "database": 1})
    relaying.publisher.answer = lambda sent: None
    await eventually_async(connected, lambda found: found == {"broker": 1, "database": 1})
    assert measured.of(catalogue.RELAY_LAST_PROGRESS)[""] > 0
    assert measured.of(catalogue.FLOOR_GAP) == {"": 1}, "only a server has a floor that rises"
    relaying.stop.set()
    await running
    assert measured.of(catalogue.RELAY_CONNECTED) == {}


def order(number: int) -> Any:
    return message(id=f"m-{number}", payload=b'{"order_id":%d,"total":"1"}' % number)


async def test_a_consumer_records_outcomes_by_handler(consuming: Consuming, measured: Measured):
    @inbox_handler("Picky")
    async def picky(session: AsyncSession, event: OrderConfirmed) -> None:
        if event.order_id == 2:
            raise ValueError("boom")

    consuming.put(order(1), order(1), order(2), message(id="x", type="Foreign"))
    await consuming.drain(picky, max_attempts=2)
    assert measured.of(catalogue.DELIVERIES, "type", "handler", "outcome") == {
        ("OrderConfirmed", "Picky", "processed"): 1,
        ("OrderConfirmed", "Picky", "duplicate"): 1,
        ("OrderConfirmed", "Picky", "retried"): 1,
        ("OrderConfirmed", "Picky", "dead"): 1,
        ("other", "", "retried"): 1,
        ("other", "", "dead"): 1,
    }
    assert measured.of(catalogue.PROCESS_DURATION, "handler", catalogue.ERROR) == {
        ("Picky", ""): 2,
        ("Picky", "ValueError"): 2,
    }
    assert measured.of(catalogue.MESSAGE_AGE, "queue") == {"billing": 1}


async def test_a_batch_is_recorded_once(consuming: Consuming, measured: Measured):
    @inbox_handler("Batched", batch=True)
    async def batched(session: AsyncSession, event: OrderConfirmed) -> None: ...

    consuming.put(*map(order, range(40)))
    await consuming.drain(batched)
    assert measured.of(catalogue.DELIVERIES, "handler", "outcome") == {("Batched", "processed"): 40}
    (batches,) = measured.of(catalogue.PROCESS_DURATION, "handler").values()
    assert batches < 40
    assert measured.of(catalogue.MESSAGE_AGE)[""] <= 16 * batches
