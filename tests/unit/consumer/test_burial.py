"""Setting messages aside."""

import asyncio
from collections import Counter

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import Outcome, tables
from outboxkit.brokers.memory import MemoryBroker, MemorySubscriber
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.consumer import Decision
from outboxkit.consumer.key_queues import Arrival, Mode
from outboxkit.consumer.records import DeadLetterWriter
from outboxkit.consumer.reports import Reports
from outboxkit.outage import Outage
from tests.unit.shop import NOW, message, rows

FAILED = Decision(Outcome.DEAD, "failed", "ValueError: boom")


REFUSE_KEYS = """CREATE TRIGGER refuse_keys BEFORE INSERT ON outboxkit_dead_letter WHEN NEW.key IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'no keys here'); END"""


async def test_one_dead_letter_a_handler_however_often_it_is_buried(async_engine: AsyncEngine, database_url: str):
    outcomes: Counter[Outcome] = Counter()
    burial = DeadLetterWriter(
        async_engine, queue="billing", outage=Outage("test"), outcomes=outcomes, reports=Reports(queue="billing")
    )
    subscriber = MemorySubscriber(MemoryBroker(), "billing", [])
    subscriber.queue.put(message(), DeliveryHeaders(attempt=3, first_failed_at=NOW))
    delivery = await subscriber.receive()
    assert delivery is not None
    failed = {"Bill": FAILED, "Ship": Decision(Outcome.STALE, "stale", "old")}
    with capture_logs() as said:
        for _ in range(2):
            assert await burial.bury(Arrival(delivery, Mode.SINGLE), failed, asyncio.Event(), attempts=3)
    names = ("queue", "handler", "reason", "attempts", "first_failed_at")
    assert [tuple(row[name] for name in names) for row in rows(database_url, tables.dead_letter)] == [
        ("billing", "Bill", "failed", 3, NOW),
        ("billing", "Ship", "stale", 3, NOW),
    ]
    assert outcomes == {Outcome.DEAD: 2, Outcome.STALE: 2}
    assert [line["handler"] for line in said] == ["Bill", "Ship"] * 2
    assert said[0]["error"] == "ValueError: boom"


async def test_what_the_database_refuses_is_kept_without_its_properties(async_engine: AsyncEngine, database_url: str):
    async with async_engine.begin() as connection:
        await connection.execute(text(REFUSE_KEYS))
    burial = DeadLetterWriter(
        async_engine, queue="billing", outage=Outage("test"), outcomes=Counter(), reports=Reports(queue="billing")
    )
    subscriber = MemorySubscriber(MemoryBroker(), "billing", [])
    subscriber.queue.put(message(key="k", headers={"a": 1}))
    delivery = await subscriber.receive()
    assert delivery is not None
    with capture_logs():
        assert await burial.bury(Arrival(delivery, Mode.SINGLE), {"Bill": FAILED}, asyncio.Event(), attempts=1)
    (row,) = rows(database_url, tables.dead_letter)
    assert (row["message_id"], row["payload"], row["key"], row["headers"]) == ("m-1", message().payload, None, b"{}")
    assert "ValueError: boom (kept without its headers and other properties" in row["error"]
    assert "no keys here" in row["error"]
