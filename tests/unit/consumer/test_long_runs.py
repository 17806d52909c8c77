"""The runs of handlers that have not ended, and their report."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import inbox, inbox_handler
from outboxkit.consumer.long_runs import LONG_SECONDS, LongRuns
from outboxkit.consumer.measurements import HandlerRuns
from tests.unit.shop import OrderConfirmed


@inbox_handler("Bills")
def bills(session: Session, event: OrderConfirmed) -> None: ...


@inbox_handler("Mails")
def mails(session: Session, event: OrderConfirmed) -> None: ...


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runs(clock: Clock) -> HandlerRuns:
    return HandlerRuns([inbox.handler_of(bills), inbox.handler_of(mails)], monotonic=clock)


def test_a_run_counts_until_it_ends_however(runs: HandlerRuns, clock: Clock):
    seen: list[dict[str, float]] = []

    def work(session: Session) -> None:
        clock.seconds += 7
        seen.append(runs.longest())
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        runs.tracked(work, ["Mails"], message_id="m", messages=1)(Session())
    assert seen == [{"Bills": 0, "Mails": 7}]
    assert runs.longest() == {"Bills": 0, "Mails": 0}


async def test_a_long_run_is_reported_at_growing_intervals(runs: HandlerRuns, clock: Clock, async_engine: AsyncEngine):
    long, began, gate = LongRuns(async_engine, runs, queue="billing"), threading.Event(), threading.Event()

    def work(_: Session) -> None:
        began.set()
        gate.wait()

    async def reports_at(seconds: float) -> list[Any]:
        clock.seconds = seconds
        with capture_logs() as said:
            await long.look()
        return said

    tracked = runs.tracked(work, ["Mails", "Bills"], message_id="m\n", messages=3)
    working = asyncio.create_task(asyncio.to_thread(tracked, Session()))
    try:
        await asyncio.to_thread(began.wait, 60)
        assert await reports_at(LONG_SECONDS - 1) == []
        (first,) = await reports_at(LONG_SECONDS)
        assert first["event"] == "handler has not ended for 60 s"
        assert (first["handler"], first["message_id"], first["messages"]) == ("Bills, Mails", "m\\n", 3)
        assert "`outboxkit status` names the session that holds it" in first["cure"]
        assert await reports_at(2 * LONG_SECONDS - 1) == []
        assert len(await reports_at(2 * LONG_SECONDS)) == 1
    finally:
        gate.set()
        await working
    assert await reports_at(9 * LONG_SECONDS) == []
