"""The partitions of the inbox that a consumer creates: for the next days, and for the days of its messages."""

import asyncio
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as midnight

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.errors.failures import first_line
from outboxkit.runtime.database_clock import EVERY, DatabaseClock
from outboxkit.schema import partitions
from outboxkit.statements.partitions import INBOX

PARTITIONS_EVERY = timedelta(hours=1)
"""The interval at which the partitions of the next days are created."""
PARTITION_DELAY = timedelta(seconds=1)
"""The delay before a partition is created for a new day, so that rows of that day are committed first."""
FARTHEST = timedelta(days=31)
"""Days farther ahead get no partition: a producer can write any time into an id."""
FAR_AHEAD = timedelta(days=1)
"""A message of so late a time has a producer whose clock is ahead."""


class InboxDays:
    """The partitions of the inbox for the days of messages."""

    def __init__(self, engine: AsyncEngine, clock: DatabaseClock) -> None:
        self._engine, self._clock = engine, clock
        self._prepared: datetime | None = None
        self._days: set[date] = set()
        self._unplaced: set[date] = set()
        self._told: set[str] = set()
        self._news = asyncio.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    def saw(self, type_: str, message_time: datetime) -> None:
        """Note that a message of this time is about to be handled: its day gets a partition if it has none.

        A time that is days ahead is logged, once for each type.
        """
        ahead = message_time - self._clock.now()
        if ahead > FAR_AHEAD and type_ not in self._told:
            self._told.add(type_)
            self._log.warning(
                "a message is of a time to come: its producer's clock is ahead",
                type=type_,
                days=ahead.days,
                cure="have NTP keep the clock of its producer; the inbox remembers it for so much longer",
            )
        day = message_time.date()
        if day not in self._days and ahead < FARTHEST:
            self._days.add(day)
            self._unplaced.add(day)
            self._news.set()

    async def once(self) -> None:
        """Read the database's clock and create the partitions of noted days; every hour also those of the next days.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        async with self._engine.connect() as connection:
            await self._clock.read(connection)
            await connection.rollback()
            now = self._clock.now()
            if self._prepared is None or abs(now - self._prepared) >= PARTITIONS_EVERY:
                await partitions.prepare_partitions(connection, INBOX)
                self._days = set(self._unplaced)  # days whose partition could not be created are noted again
                self._prepared = now
            if self._unplaced:
                days, self._unplaced = self._unplaced, set()
                first, last = (datetime.combine(day, midnight(), UTC) for day in (min(days), max(days)))
                await partitions.make_behind(connection, first, last)

    async def run(self) -> None:
        """Call `once` every minute, or soon after a day was noted, until cancelled. Outages are reported elsewhere."""
        while True:
            await self._wait_for_days()
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - whatever it is, the clock is read again
                self._log.debug("the database's clock could not be read", error=first_line(error))

    async def _wait_for_days(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERY.total_seconds()):
                await self._news.wait()
                await asyncio.sleep(PARTITION_DELAY.total_seconds())
        self._news.clear()
