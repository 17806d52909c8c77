"""The database's clock as a consumer knows it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions
from outboxkit.consumer import upkeep as upkeep_module
from outboxkit.consumer.upkeep import Upkeep
from tests.unit.shop import NOW


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_it_goes_on_from_what_the_database_said(async_engine: AsyncEngine):
    seconds = Seconds()
    upkeep = Upkeep(async_engine, monotonic=seconds)
    await upkeep.once()
    async with async_engine.connect() as connection:
        said = await partitions.clock(connection)
    assert timedelta(0) <= said - upkeep.now() < timedelta(minutes=1)
    before = upkeep.now()
    seconds.now += 3600
    assert upkeep.now() - before == timedelta(hours=1), "no change of this machine's clock moves it"


async def test_its_seconds_go_on_while_the_machine_sleeps(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    boot = Seconds()
    clocks = {upkeep_module.BOOT_CLOCK: boot}
    monkeypatch.setattr(time, "clock_gettime", lambda number: clocks[number]())
    upkeep = Upkeep(async_engine)
    await upkeep.once()
    before, boot.now = upkeep.now(), boot.now + 7 * 3600
    assert upkeep.now() - before == timedelta(hours=7)
    assert getattr(time, "CLOCK_BOOTTIME", upkeep_module.BOOT_CLOCK) == upkeep_module.BOOT_CLOCK


async def test_before_the_database_was_asked_it_is_this_machines_own(async_engine: AsyncEngine):
    assert abs(Upkeep(async_engine).now() - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_test_gives_it_a_clock_of_its_own(async_engine: AsyncEngine):
    upkeep = Upkeep(async_engine, clock=lambda: NOW)
    await upkeep.once()
    assert upkeep.now() == NOW


async def test_it_asks_again_and_an_outage_does_not_end_it(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upkeep_module, "EVERY", timedelta(milliseconds=1))
    asked = asyncio.Event()
    calls = 0
    upkeep = Upkeep(async_engine)

    async def once() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise TimeoutError("away")
        asked.set()

    monkeypatch.setattr(upkeep, "once", once)
    running = asyncio.create_task(upkeep.run())
    async with asyncio.timeout(10):
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
    upkeep = Upkeep(async_engine, clock=lambda: NOW)
    for days in (0, -3, -3, 40):
        upkeep.saw(NOW + timedelta(days=days))
    await upkeep.once()
    upkeep.saw(NOW)
    await upkeep.once()
    today = NOW.replace(hour=0)
    assert asked == [(today - timedelta(days=3), today)]


async def test_what_was_seen_is_done_soon(async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upkeep_module, "SETTLING", timedelta(milliseconds=1))
    done = asyncio.Event()
    upkeep = Upkeep(async_engine, clock=lambda: NOW)

    async def once() -> None:
        done.set()

    monkeypatch.setattr(upkeep, "once", once)
    running = asyncio.create_task(upkeep.run())
    upkeep.saw(NOW)
    async with asyncio.timeout(10):
        await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
