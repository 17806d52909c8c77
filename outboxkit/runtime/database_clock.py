"""The database's clock, by which workers decide what is due, expired or stale. This machine's is compared with it."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit.errors.failures import first_line
from outboxkit.runtime.outage import Clock, utc_now
from outboxkit.schema import partitions
from outboxkit.telemetry import catalogue, metrics

EVERY = timedelta(minutes=1)
APART = timedelta(seconds=30)
"""A difference of the clocks that is logged, and after that a change of it."""
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that also counts while the machine sleeps, on systems that have one."""
_CURE = "have NTP keep the clocks of both machines, such as with chrony; this worker goes by the database's"


def boot_time() -> float:
    """Seconds of a clock that is never adjusted; the machine's sleep counts too."""
    return time.clock_gettime(BOOT_CLOCK)


class DatabaseClock:
    """The time by the database's clock.

    Args:
        clock: replaces the database's in a test.
        monotonic: seconds of a clock that is never adjusted and that goes on while the machine sleeps.
        wall: this machine's own clock.

    Attributes:
        ahead: the time by which this machine's clock was ahead at the last reading; None before the first one.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        process: Literal["relay", "consumer"],
        clock: Clock | None = None,
        monotonic: Callable[[], float] = boot_time,
        wall: Clock = utc_now,
    ) -> None:
        self._engine, self._clock = engine, clock
        self._monotonic, self._wall = monotonic, wall
        self._reading: tuple[datetime, float] | None = None
        self.ahead: timedelta | None = None
        self._told = timedelta()
        self._log = structlog.get_logger("outboxkit").bind(process=process)

    def now(self) -> datetime:
        """The database's time or a little less, from its last reading; before the first one this machine's own clock.

        It is less by the time that the answer took to come, so that nothing is due too early.
        """
        if self._clock is not None:
            return self._clock()
        if self._reading is None:
            return datetime.now(UTC)
        then, at = self._reading
        return then + timedelta(seconds=self._monotonic() - at)

    def gauges(self) -> dict[catalogue.Metric, metrics.Read]:
        """The gauge of the clocks' difference."""
        return {catalogue.CLOCKS_APART: lambda: [] if self.ahead is None else [(self.ahead.total_seconds(), {})]}

    async def read(self, connection: AsyncConnection) -> None:
        """Read the database's clock, and compare this machine's with it."""
        if self._clock is not None:
            return
        here, at = self._wall(), self._monotonic()
        there = await partitions.clock(connection)
        ended = self._monotonic()
        half = timedelta(seconds=ended - at) / 2
        self._reading, self.ahead = (there, ended), here + half - there
        self._tell(self.ahead, doubt=half)

    async def once(self) -> None:
        """`read`, on a connection of its own."""
        async with self._engine.connect() as connection:
            await self.read(connection)

    async def run(self) -> None:
        """Call `once` every minute, until cancelled. Outages are reported elsewhere."""
        while True:
            await asyncio.sleep(EVERY.total_seconds())
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - whatever it is, the clock is read again
                self._log.debug("the database's clock could not be read", error=first_line(error))

    def _tell(self, ahead: timedelta, *, doubt: timedelta) -> None:
        """Log a difference once, and again when it has changed as much."""
        if abs(ahead - self._told) < APART + doubt:
            return
        is_apart = abs(ahead) >= APART
        self._told = ahead if is_apart else timedelta()
        seconds = round(ahead.total_seconds())
        if is_apart:
            self._log.warning(
                f"this machine's clock is {'ahead of' if seconds > 0 else 'behind'} the database's",
                seconds=abs(seconds),
                cure=_CURE,
            )
        else:
            self._log.info("this machine's clock agrees with the database's again")
