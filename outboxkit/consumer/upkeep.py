"""What a consumer does beside its deliveries: it keeps the database's time, and the inbox's partitions ahead of it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as dawn

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions
from outboxkit.failures import first_line
from outboxkit.outage import Clock

EVERY = timedelta(minutes=1)
PARTITIONS_EVERY = timedelta(hours=1)
SETTLING = timedelta(seconds=1)
"""How long a day without a partition is left alone, for what was seen of it to be committed."""
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts on while the machine sleeps, on systems that have such a clock."""
FARTHEST = timedelta(days=31)
"""Days farther ahead get no partition: anybody can write any time into an id."""


def boot_time() -> float:
    """Seconds that no change of a clock moves; those of this machine's sleep are among them."""
    return time.clock_gettime(BOOT_CLOCK)


class Upkeep:
    """The database's clock, and the inbox's days: those to come, and those of messages that come.

    Args:
        engine: for connections of its own.
        clock: stands for the database's in a test.
        monotonic: seconds that no change of a clock moves, and that go on while the machine sleeps.
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
        self._asked: tuple[datetime, float] | None = None
        self._prepared: float | None = None
        self._days: set[date] = set()
        self._unplaced: set[date] = set()
        self._news = asyncio.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    def now(self) -> datetime:
        """The time by the database's clock, as far as it is known: this machine's own does not matter."""
        if self._clock is not None:
            return self._clock()
        if self._asked is None:
            return datetime.now(UTC)
        then, at = self._asked
        return then + timedelta(seconds=self._monotonic() - at)

    def saw(self, made: datetime) -> None:
        """Note that a message of this day is about to be handled: the day gets its partition, if it has none."""
        day = made.date()
        if day not in self._days and made - self.now() < FARTHEST:
            self._days.add(day)
            self._unplaced.add(day)
            self._news.set()

    async def once(self) -> None:
        """Ask the database for the time; make the partitions of days that were seen, and of those ahead now and then.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        async with self._engine.connect() as connection:
            at = self._monotonic()
            self._asked = await partitions.clock(connection), at
            await connection.rollback()
            if self._prepared is None or at - self._prepared >= PARTITIONS_EVERY.total_seconds():
                await partitions.prepare_partitions(connection, partitions.INBOX)
                self._days = set(self._unplaced)  # look again, where it could not be done
                self._prepared = at
            if self._unplaced:
                days, self._unplaced = self._unplaced, set()
                first, last = (datetime.combine(day, dawn(), UTC) for day in (min(days), max(days)))
                await partitions.make_behind(connection, first, last)

    async def run(self) -> None:
        """Do it again and again, until cancelled. An outage is the deliveries' to report."""
        while True:
            await self._something_to_do()
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - whatever it is, the clock is asked again
                self._log.debug("the database's clock could not be asked", error=first_line(error))

    async def _something_to_do(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERY.total_seconds()):
                await self._news.wait()
                await asyncio.sleep(SETTLING.total_seconds())
        self._news.clear()
