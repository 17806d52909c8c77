"""What a consumer does beside its deliveries: it keeps the database's time, and the inbox's partitions ahead of it."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions
from outboxkit.outage import Clock, first_line

EVERY = timedelta(minutes=1)
PARTITIONS_EVERY = timedelta(hours=1)


class Upkeep:
    """The database's clock, and the days to come.

    Args:
        engine: for connections of its own.
        clock: stands for the database's in a test.
        monotonic: seconds that no change of a clock moves.
    """

    def __init__(
        self, engine: AsyncEngine, *, clock: Clock | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._monotonic = monotonic
        self._asked: tuple[datetime, float] | None = None
        self._prepared: float | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    def now(self) -> datetime:
        """The time by the database's clock, as far as it is known: this machine's own does not matter."""
        if self._clock is not None:
            return self._clock()
        if self._asked is None:
            return datetime.now(UTC)
        then, at = self._asked
        return then + timedelta(seconds=self._monotonic() - at)

    async def once(self) -> None:
        """Ask the database for the time, and make the partitions where that was long ago.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        async with self._engine.connect() as connection:
            at = self._monotonic()
            self._asked = await partitions.clock(connection), at
            await connection.rollback()
            if self._prepared is None or at - self._prepared >= PARTITIONS_EVERY.total_seconds():
                await partitions.prepare_partitions(connection, partitions.INBOX)
                self._prepared = at

    async def run(self) -> None:
        """Do it again and again, until cancelled. An outage is the deliveries' to report."""
        while True:
            await asyncio.sleep(EVERY.total_seconds())
            try:
                await self.once()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                self._log.debug("the database's clock could not be asked", error=first_line(error))
