"""Retention: inbox rows that are old enough are forgotten, in small batches, so that nothing else has to wait."""

import asyncio
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import migrations, statements
from outboxkit.outage import Clock, Outage, pause, utc_now

MARGIN = timedelta(hours=1)
"""Rows are kept this much longer than promised: the clocks of consumers and pruner may differ."""


class Retention:
    """Deletes inbox rows that are older than the retention.

    A message that old is stale to every consumer of the same retention, so its inbox row will not be asked for again.

    Args:
        engine: for its own connections.
        inbox_retention: how long an inbox row is kept, at least.
        batch_size: rows deleted in one transaction.
        clock: for tests.
    """

    def __init__(
        self, engine: AsyncEngine, *, inbox_retention: timedelta, batch_size: int = 1000, clock: Clock = utc_now
    ) -> None:
        self._engine = engine
        self._inbox_retention = inbox_retention
        self._batch_size = batch_size
        self._clock = clock
        self._log = structlog.get_logger("outboxkit").bind(process="retention")

    async def prune(self) -> int:
        """Forget what is old enough; returns the number of rows.

        Raises:
            SchemaError: the tables are missing or old.
        """
        before, total, deleted = self._clock() - self._inbox_retention - MARGIN, 0, self._batch_size
        async with self._engine.begin() as connection:
            await connection.run_sync(migrations.check)
        while deleted == self._batch_size:
            async with self._engine.begin() as connection:
                deleted = (await connection.execute(statements.prune_inbox(before, self._batch_size))).rowcount
            total += deleted
        return total

    async def run(self, stop: asyncio.Event, *, interval: timedelta) -> None:
        """Prune now and then again after each interval, until `stop` is set. Outages are waited out."""
        outage = Outage("retention")
        while not stop.is_set():
            forgotten = await outage.ride_out(self.prune, stop)
            self._log.info("inbox pruned", rows=forgotten)
            await pause(stop, interval.total_seconds())
