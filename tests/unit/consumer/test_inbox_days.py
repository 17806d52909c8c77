"""The days of the inbox, and messages of a time to come."""

import asyncio
from datetime import datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit.consumer import inbox_days as inbox_days_module
from outboxkit.consumer.inbox_days import InboxDays
from outboxkit.runtime.database_clock import DatabaseClock
from outboxkit.schema import partitions
from tests.unit.shop import NOW


def days_of(engine: AsyncEngine) -> InboxDays:
    return InboxDays(engine, DatabaseClock(engine, process="consumer", clock=lambda: NOW))


async def test_it_asks_again_and_an_outage_does_not_end_it(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inbox_days_module, "EVERY", timedelta(milliseconds=1))
    asked = asyncio.Event()
    calls = 0
    days = days_of(async_engine)

    async def once() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls < 3:
            raise TimeoutError("away")
        asked.set()

    monkeypatch.setattr(days, "once", once)
    running = asyncio.create_task(days.run())
    async with asyncio.timeout(120):
        await asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert calls >= 3


async def test_a_day_is_looked_after_once_and_not_if_it_is_far_ahead(
    async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[datetime, datetime]] = []

    async def make_behind(_: object, first: datetime, last: datetime) -> None:
        asked.append((first, last))

    monkeypatch.setattr(partitions, "make_behind", make_behind)
    days = days_of(async_engine)
    for number in (0, -3, -3, 40):
        days.saw("T", NOW + timedelta(days=number))
    await days.once()
    days.saw("T", NOW)
    await days.once()
    today = NOW.replace(hour=0)
    assert asked == [(today - timedelta(days=3), today)]


async def test_what_was_seen_is_done_soon(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inbox_days_module, "EVERY", timedelta(days=1))
    monkeypatch.setattr(inbox_days_module, "SETTLING", timedelta(milliseconds=1))
    done = asyncio.Event()
    days = days_of(async_engine)

    async def once() -> None:
        done.set()

    monkeypatch.setattr(days, "once", once)
    running = asyncio.create_task(days.run())
    days.saw("T", NOW)
    async with asyncio.timeout(120):
        await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_producer_whose_clock_is_days_ahead_is_told_of_once_for_each_type(async_engine: AsyncEngine):
    days = days_of(async_engine)
    with capture_logs() as log:
        for type_, ahead in (("A", 0.9), ("A", 3), ("A", 4), ("B", 40), ("C", -3)):
            days.saw(type_, NOW + timedelta(days=ahead))
    assert [(entry["type"], entry["days"]) for entry in log] == [("A", 3), ("B", 40)]
    assert log[0]["event"] == "a message is of a time to come: its producer's clock is ahead"
