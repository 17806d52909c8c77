"""The consumer's background work: it follows the database's clock, and creates the inbox's partitions ahead of time."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as midnight

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions
from outboxkit.failures import first_line
from outboxkit.outage import Clock

EVERY = timedelta(minutes=1)
PARTITIONS_EVERY = timedelta(hours=1)
SETTLING = timedelta(seconds=1)
"""The delay before a partition is created for a new day, so that rows of that day are committed first."""
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that also counts while the machine sleeps, on systems that have one."""
FARTHEST = timedelta(days=31)
"""Days farther ahead get no partition: a producer can write any time into an id."""


def boot_time() -> float:
    """Seconds of a clock that is never adjusted; the machine's sleep counts too."""
    return time.clock_gettime(BOOT_CLOCK)


class DatabaseClock:
    """The time by the database's clock, and the partitions of the inbox for the days that it needs.

    Args:
        engine: for its own connections.
        clock: replaces the database's in a test.
        monotonic: seconds of a clock that is never adjusted and that goes on while the machine sleeps.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = boot_time,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._monotonic = monotonic
        self._reading: tuple[datetime, float] | None = None
        self._prepared: float | None = None
        self._days: set[date] = set()
        self._unplaced: set[date] = set()
        self._news = asyncio.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    def now(self) -> datetime:
        """The database's time, from its last reading; this machine's own clock before the first one."""
        if self._clock is not None:
            return self._clock()
        if self._reading is None:
            return datetime.now(UTC)
        then, at = self._reading
        return then + timedelta(seconds=self._monotonic() - at)

    def saw(self, message_time: datetime) -> None:
        """Note that a message of this time is about to be handled: its day gets a partition if it has none."""
        day = message_time.date()
        if day not in self._days and message_time - self.now() < FARTHEST:
            self._days.add(day)
            self._unplaced.add(day)
            self._news.set()

    async def once(self) -> None:
        """Read the database's clock and create the partitions of noted days; every hour also those of the next days.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        async with self._engine.connect() as connection:
            at = self._monotonic()
            self._reading = await partitions.clock(connection), at
            await connection.rollback()
            if self._prepared is None or at - self._prepared >= PARTITIONS_EVERY.total_seconds():
                await partitions.prepare_partitions(connection, partitions.INBOX)
                self._days = set(self._unplaced)  # days whose partition could not be created are noted again
                self._prepared = at
            if self._unplaced:
                days, self._unplaced = self._unplaced, set()
                first, last = (datetime.combine(day, midnight(), UTC) for day in (min(days), max(days)))
                await partitions.make_behind(connection, first, last)

    async def run(self) -> None:
        """Call `once` every minute, or soon after a day was noted, until cancelled. Outages are reported elsewhere."""
        while True:
            await self._next_turn()
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - whatever it is, the clock is read again
                self._log.debug("the database's clock could not be read", error=first_line(error))

    async def _next_turn(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERY.total_seconds()):
                await self._news.wait()
                await asyncio.sleep(SETTLING.total_seconds())
        self._news.clear()
