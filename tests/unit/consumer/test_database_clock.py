"""The database's clock as a consumer knows it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions
from outboxkit.consumer import database_clock as database_clock_module
from outboxkit.consumer.database_clock import DatabaseClock
from tests.unit.shop import NOW


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_it_goes_on_from_what_the_database_said(async_engine: AsyncEngine):
    seconds = Seconds()
    database_clock = DatabaseClock(async_engine, monotonic=seconds)
    await database_clock.once()
    async with async_engine.connect() as connection:
        said = await partitions.clock(connection)
    assert timedelta(0) <= said - database_clock.now() < timedelta(minutes=1)
    before = database_clock.now()
    seconds.now += 3600
    assert database_clock.now() - before == timedelta(hours=1), "no change of this machine's clock moves it"


async def test_its_seconds_go_on_while_the_machine_sleeps(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    boot = Seconds()
    clocks = {database_clock_module.BOOT_CLOCK: boot}
    monkeypatch.setattr(time, "clock_gettime", lambda number: clocks[number]())
    database_clock = DatabaseClock(async_engine)
    await database_clock.once()
    before, boot.now = database_clock.now(), boot.now + 7 * 3600
    assert database_clock.now() - before == timedelta(hours=7)
    assert getattr(time, "CLOCK_BOOTTIME", database_clock_module.BOOT_CLOCK) == database_clock_module.BOOT_CLOCK


async def test_before_the_database_was_asked_it_is_this_machines_own(async_engine: AsyncEngine):
    assert abs(DatabaseClock(async_engine).now() - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_test_gives_it_a_clock_of_its_own(async_engine: AsyncEngine):
    database_clock = DatabaseClock(async_engine, clock=lambda: NOW)
    await database_clock.once()
    assert database_clock.now() == NOW


async def test_it_asks_again_and_an_outage_does_not_end_it(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_clock_module, "EVERY", timedelta(milliseconds=1))
    asked = asyncio.Event()
    calls = 0
    database_clock = DatabaseClock(async_engine)

    async def once() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls < 3:
            raise TimeoutError("away")
        asked.set()

    monkeypatch.setattr(database_clock, "once", once)
    running = asyncio.create_task(database_clock.run())
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
    database_clock = DatabaseClock(async_engine, clock=lambda: NOW)
    for days in (0, -3, -3, 40):
        database_clock.saw(NOW + timedelta(days=days))
    await database_clock.once()
    database_clock.saw(NOW)
    await database_clock.once()
    today = NOW.replace(hour=0)
    assert asked == [(today - timedelta(days=3), today)]


async def test_what_was_seen_is_done_soon(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_clock_module, "EVERY", timedelta(days=1))
    monkeypatch.setattr(database_clock_module, "SETTLING", timedelta(milliseconds=1))
    done = asyncio.Event()
    database_clock = DatabaseClock(async_engine, clock=lambda: NOW)

    async def once() -> None:
        done.set()

    monkeypatch.setattr(database_clock, "once", once)
    running = asyncio.create_task(database_clock.run())
    database_clock.saw(NOW)
    async with asyncio.timeout(120):
        await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
