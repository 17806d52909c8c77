"""The first page: what needs attention, what waits and for how long, the last hour, and who is connected."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from outboxkit.console.visit import Visit, page
from outboxkit.errors import SchemaError
from outboxkit.errors.figures import many, span
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import without_error
from outboxkit.operators.messages import Minute, read_hour
from outboxkit.operators.status import Status, read_status

FRESH_SECONDS = 3.0
"""For so long all readers of the page get the same figures."""
BAR, HEIGHT = 10, 80


class FreshStatus:
    """The status and the last hour, read once every few seconds for all who ask."""

    def __init__(self, installation: Installation) -> None:
        self._installation, self._lock = installation, asyncio.Lock()
        self._read: tuple[Status, list[Minute] | None] | None = None
        self._read_at = 0.0

    async def read(self) -> tuple[Status, list[Minute] | None]:
        """Both, at most a few seconds old; no hour if no message is kept."""
        async with self._lock:
            if self._read is None or time.monotonic() - self._read_at > FRESH_SECONDS:
                self._read = await read_status(self._installation), await self._hour()
                self._read_at = time.monotonic()
            return self._read

    async def _hour(self) -> list[Minute] | None:
        try:
            async with self._installation.opened() as connection:
                return await connection.run_sync(read_hour)
        except (SchemaError, SQLAlchemyError):
            return None  # a finding says why


async def overview(visit: Visit) -> Response:
    """Show the findings and the figures of `outboxkit status`, and the last hour."""
    report, hour = await visit.request.app.state.status.read()
    charts = None if hour is None else [
        _chart("Published a minute", hour, lambda minute: minute.messages, _rate),
        _chart("Mean time from add to publish", hour, lambda minute: minute.lag or 0.0, span),
    ]  # fmt: skip
    now = visit.console.installation.clock()
    if not visit.may("payload"):
        report = replace(report, advice=tuple(map(without_error, report.advice)))
    return visit.page("overview.html", report=report, figures=report.figures, charts=charts, now=now)


def _chart(
    title: str, hour: list[Minute], value: Callable[[Minute], float], words: Callable[[float], str]
) -> dict[str, Any]:
    """Bars of the last hour, each with its place, its height and its text, and the largest value in words."""
    most = max(map(value, hour))
    bars = [
        (number * BAR, round(HEIGHT * value(minute) / most, 1), f"{minute.at:%H:%M} UTC: {words(value(minute))}")
        for number, minute in enumerate(hour)
        if value(minute)
    ]
    return {"title": title, "most": words(most), "bars": bars}


def _rate(messages: float) -> str:
    return many(int(messages), "message")


ROUTES = (page("/", overview),)
