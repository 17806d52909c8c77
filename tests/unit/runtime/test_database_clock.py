"""The database's clock as workers know it, and how far this machine's is from it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit.runtime import database_clock as module
from outboxkit.runtime.database_clock import DatabaseClock
from outboxkit.schema import partitions
from outboxkit.telemetry import catalogue


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_it_goes_on_from_what_the_database_said(async_engine: AsyncEngine):
    seconds = Seconds()
    database_clock = DatabaseClock(async_engine, process="relay", monotonic=seconds)
    await database_clock.once()
    async with async_engine.connect() as connection:
        said = await partitions.clock(connection)
    assert timedelta(0) <= said - database_clock.now() < timedelta(minutes=1)
    before = database_clock.now()
    seconds.now += 3600
    assert database_clock.now() - before == timedelta(hours=1), "no change of this machine's clock moves it"


async def test_after_a_slow_answer_nothing_is_due_too_early(async_engine: AsyncEngine):
    seconds = iter([0.0, 200.0, 200.0])
    database_clock = DatabaseClock(async_engine, process="relay", monotonic=lambda: next(seconds))
    await database_clock.once()
    async with async_engine.connect() as connection:
        assert database_clock.now() <= await partitions.clock(connection)


async def test_a_wrong_clock_is_told_once_and_again_when_it_has_changed(async_engine: AsyncEngine):
    ahead = timedelta()
    seconds = Seconds()
    clock = DatabaseClock(async_engine, process="relay", monotonic=seconds, wall=lambda: datetime.now(UTC) + ahead)
    assert list(clock.gauges()[catalogue.CLOCKS_APART]()) == []
    told: list[tuple[str, int | None]] = []
    for found in (0, 20, 40, 45, 1200, 1210, -40, 0, 0, 31):
        ahead = timedelta(seconds=found)
        with capture_logs() as log:
            await clock.once()
        told += [(entry["event"], entry.get("seconds")) for entry in log]
        ((value, _),) = clock.gauges()[catalogue.CLOCKS_APART]()
        assert abs(value - found) < 10
    assert [(event.partition("clock ")[2], seconds and round(seconds, -1)) for event, seconds in told] == [
        ("is ahead of the database's", 40),
        ("is ahead of the database's", 1200),
        ("is behind the database's", 40),
        ("agrees with the database's again", None),
        ("is ahead of the database's", 30),
    ]


async def test_what_took_long_to_answer_is_no_difference(async_engine: AsyncEngine):
    seconds = iter([0.0, 200.0])
    clock = DatabaseClock(async_engine, process="relay", monotonic=lambda: next(seconds))
    with capture_logs() as log:
        await clock.once()
    assert log == []


async def test_it_is_read_each_minute_and_an_outage_does_not_end_that(
    async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "EVERY", timedelta(milliseconds=1))
    asked = asyncio.Event()
    calls = 0
    clock = DatabaseClock(async_engine, process="relay")

    async def once() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise TimeoutError("away")
        asked.set()

    monkeypatch.setattr(clock, "once", once)
    running = asyncio.create_task(clock.run())
    async with asyncio.timeout(120):
        await asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
