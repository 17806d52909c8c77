"""Setting messages aside."""

import asyncio
from collections import Counter

from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import Outcome, tables
from outboxkit.brokers.marks import Marks
from outboxkit.brokers.memory import MemoryBroker, MemorySubscriber
from outboxkit.consumer import Decision
from outboxkit.consumer.burial import Burial
from outboxkit.consumer.lanes import Arrival, Way
from outboxkit.consumer.reports import Reports
from outboxkit.outage import Outage
from tests.unit.shop import NOW, message, rows

FAILED = Decision(Outcome.DEAD, "failed", "ValueError: boom")


async def test_one_dead_letter_a_handler_however_often_it_is_buried(async_engine: AsyncEngine, database_url: str):
    outcomes: Counter[Outcome] = Counter()
    burial = Burial(
        async_engine, queue="billing", outage=Outage("test"), outcomes=outcomes, reports=Reports(queue="billing")
    )
    subscriber = MemorySubscriber(MemoryBroker(), "billing", [])
    subscriber.queue.put(message(), Marks(attempt=3, first_failed_at=NOW))
    delivery = await subscriber.receive()
    assert delivery is not None
    failed = {"Bill": FAILED, "Ship": Decision(Outcome.STALE, "stale", "old")}
    with capture_logs() as said:
        for _ in range(2):
            assert await burial.bury(Arrival(delivery, Way.SINGLY), failed, asyncio.Event(), attempts=3)
    names = ("queue", "handler", "reason", "attempts", "first_failed_at")
    assert [tuple(row[name] for name in names) for row in rows(database_url, tables.dead_letter)] == [
        ("billing", "Bill", "failed", 3, NOW),
        ("billing", "Ship", "stale", 3, NOW),
    ]
    assert outcomes == {Outcome.DEAD: 2, Outcome.STALE: 2}
    assert [line["handler"] for line in said] == ["Bill", "Ship"] * 2
    assert said[0]["error"] == "ValueError: boom"
