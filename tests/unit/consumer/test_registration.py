"""The registration of handlers while the database is away."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from outboxkit import inbox_handler
from outboxkit.consumer.registration import RECORDED_EVERY, Registration
from outboxkit.inbox import handler_of
from outboxkit.runtime import process
from tests.unit.shop import OrderConfirmed


@inbox_handler("Bills")
async def bills(session: AsyncSession, event: OrderConfirmed) -> None: ...


async def test_it_is_raised_at_the_start_and_later_tried_again_each_hour(tmp_path: Path):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    away = process.engine(f"sqlite:///{tmp_path}/missing/app.db", name="unit tests")
    registration = Registration(away, [handler_of(bills)], queue="billing", sleep=sleep)
    with pytest.raises(OperationalError, match="unable to open"):
        await registration.begin()
    registration._is_begun = True  # the database was there at the start, and went away
    with capture_logs() as said, pytest.raises(asyncio.CancelledError):
        await registration.run()
    assert slept == [RECORDED_EVERY.total_seconds()] * 3
    assert [line["event"] for line in said] == ["handlers not recorded"] * 2
    assert all(line["log_level"] == "debug" for line in said)
    await away.dispose()
