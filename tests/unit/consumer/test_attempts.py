"""Starts and failures of messages that may have killed a consumer or wait in one, and dead letters."""

import asyncio
import sqlite3
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from structlog.testing import capture_logs

from outboxkit import Message, Outcome, tables
from outboxkit.brokers.memory import MemoryBroker, MemorySubscriber
from outboxkit.consumer.attempts import AttemptRecord, Records
from outboxkit.consumer.decisions import Decision
from outboxkit.consumer.reports import Reports
from outboxkit.consumer.routing import Arrival, Mode
from outboxkit.runtime.outage import Outage
from tests.unit.shop import NOW, message, rows

FAILED = Decision(Outcome.DEAD, "failed", "ValueError: boom")


def records(engine: AsyncEngine, queue: str = "billing") -> Records:
    subscriber = MemorySubscriber(MemoryBroker(), queue, [])
    return Records(
        engine=engine,
        queue=queue,
        outage=Outage("test"),
        reports=Reports([], subscriber=subscriber, queue=queue, now=lambda: NOW),
    )


async def arrival(sent: Message) -> Arrival:
    subscriber = MemorySubscriber(MemoryBroker(), "billing", [])
    subscriber.queue.put(sent)
    delivery = await subscriber.receive()
    assert delivery is not None
    return Arrival(delivery, Mode.SINGLE)


REFUSE_KEYS = """CREATE TRIGGER refuse_keys BEFORE INSERT ON outboxkit_dead_letter WHEN NEW.key IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'no keys here'); END"""


async def test_what_the_database_refuses_is_kept_without_its_properties(async_engine: AsyncEngine, database_url: str):
    async with async_engine.begin() as connection:
        await connection.execute(text(REFUSE_KEYS))
    billing = records(async_engine)
    sent = await arrival(message(key="k", headers={"a": 1}, version=2))
    with capture_logs():
        assert await billing.bury(sent, {"Bill": FAILED}, asyncio.Event(), attempts=1)
    (row,) = rows(database_url, tables.dead_letter)
    assert (row["message_id"], row["payload"], row["key"], row["headers"]) == ("m-1", message().payload, None, b"{}")
    assert (row["type"], row["version"], row["attempts"], row["reason"]) == ("OrderConfirmed", 2, 1, "failed")
    assert "ValueError: boom (kept without its headers and other properties" in row["error"]
    assert "no keys here" in row["error"]


async def test_starts_and_failures_are_counted_for_each_message_of_a_queue(
    async_engine: AsyncEngine, database_url: str
):
    stop = asyncio.Event()
    billing, shipping = records(async_engine), records(async_engine, "shipping")
    assert [(await billing.start("m", stop)).starts for _ in range(3)] == [1, 2, 3]
    assert (await billing.start("n", stop)).starts == 1
    assert (await shipping.start("m", stop)).starts == 1
    failed = await billing.fail("m", 1, stop)
    assert (failed.starts, failed.failures, failed.first_failed_at is not None) == (0, 1, True)
    again = await billing.start("m", stop)
    assert (again.starts, again.failures, again.first_failed_at) == (1, 1, failed.first_failed_at)
    assert await billing.fail("m", 1, stop) == failed, "repeated after a commit whose answer was lost"
    again = await billing.fail("m", 2, stop)
    assert (again.failures, again.first_failed_at) == (2, failed.first_failed_at)
    assert await billing.forget("m", stop=stop)
    assert (await billing.start("m", stop)).failures == 0
    assert [(row["queue"], row["message_id"]) for row in rows(database_url, tables.attempt)] == [
        ("billing", "m"),
        ("billing", "n"),
        ("shipping", "m"),
    ]


async def test_a_start_that_a_stop_has_ended_does_not_count(async_engine: AsyncEngine, database_url: str):
    stop = asyncio.Event()
    billing = records(async_engine)
    first = await billing.start("m", stop)
    await billing.call_off("m", first, stop)
    assert rows(database_url, tables.attempt) == []
    await billing.start("m", stop)
    second = await billing.start("m", stop)
    await billing.call_off("m", second, stop)
    assert [(row["message_id"], row["starts"]) for row in rows(database_url, tables.attempt)] == [("m", 1)]


async def test_a_stop_does_not_wait_for_a_database_that_is_away():
    stop = asyncio.Event()
    stop.set()
    away = create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    billing = records(away)
    assert await billing.start("m", stop) is None
    await billing.call_off("m", AttemptRecord(starts=2), stop)


async def test_a_dead_letter_loses_nothing_for_a_database_that_is_away_too_long(
    async_engine: AsyncEngine, database_url: str
):
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
    outages = [OperationalError("INSERT", {}, locked)]

    @event.listens_for(async_engine.sync_engine, "before_cursor_execute")
    def fail_once(*_: Any) -> None:
        if outages:
            raise outages.pop()

    sent = await arrival(message(key="k"))
    billing = replace(records(async_engine), outage=Outage("test", patience=0))
    with pytest.raises(OperationalError, match="locked"):
        await billing.bury(sent, {"Bill": FAILED}, asyncio.Event(), attempts=1)
    assert rows(database_url, tables.dead_letter) == []
