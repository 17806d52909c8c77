"""Retention: what is old enough is forgotten, in small batches and whole days, so that nothing else has to wait."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import structlog
from sqlalchemy import Delete
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import migrations, partitions, statements
from outboxkit.outage import Clock, Outage, pause

MARGIN = timedelta(hours=1)
"""Rows are kept this much longer than promised: the clocks of consumers and pruner may differ."""


@dataclass(slots=True)
class Pruned:
    """What a round of pruning did.

    Attributes:
        inbox: inbox rows that were forgotten.
        days_made: days to come that have a partition of `outboxkit_published` now.
        days_dropped: days that were dropped with all their messages.
        published: kept messages that were forgotten one by one, because their day had no partition.
        untouched: messages are kept, and nothing says for how long.
        problems: what could not be done.
        busy: whether all of the problems are locks, which somebody holds for now.
    """

    inbox: int = 0
    days_made: list[date] = field(default_factory=list)
    days_dropped: list[date] = field(default_factory=list)
    published: int = 0
    untouched: bool = False
    problems: list[str] = field(default_factory=list)
    busy: bool = True


class Retention:
    """Forgets inbox rows and kept published messages that are older than their retention. Dead letters stay.

    A message that old is stale to every consumer of the same retention, so its inbox row will not be asked for again.

    Args:
        engine: for its own connections.
        inbox_retention: how long an inbox row is kept, at least.
        keep_published: how long published messages are kept, at least; where None they are left alone.
        batch_size: rows deleted in one transaction.
        clock: for tests; the database's own where None.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        inbox_retention: timedelta,
        keep_published: timedelta | None = None,
        batch_size: int = 1000,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._inbox_retention = inbox_retention
        self._keep_published = keep_published
        self._batch_size = batch_size
        self._clock = clock
        self._log = structlog.get_logger("outboxkit").bind(process="retention")

    async def prune(self) -> Pruned:
        """Forget what is old enough, and on PostgreSQL make the partitions of the days to come.

        Raises:
            SchemaError: the tables are missing or old.
        """
        done = Pruned()
        async with self._engine.begin() as connection:
            await connection.run_sync(migrations.check)
            now = self._clock() if self._clock is not None else await partitions.clock(connection)
        before = now - self._inbox_retention - MARGIN
        done.inbox = await self._in_batches(lambda limit: statements.inbox.prune_inbox(before, limit))
        if self._keep_published is None:
            async with self._engine.connect() as connection:
                done.untouched = (await connection.execute(statements.published.any_published())).first() is not None
        else:
            await self._prune_published(done, now, now - self._keep_published)
        return done

    async def run(self, stop: asyncio.Event, *, interval: timedelta) -> None:
        """Prune now and then again after each interval, until `stop` is set. Outages are waited out."""
        outage = Outage("retention")
        while not stop.is_set():
            done = await outage.ride_out(self.prune, stop)
            if done is not None:
                self._report(done)
            await pause(stop, interval.total_seconds())

    async def _prune_published(self, done: Pruned, now: datetime, before: datetime) -> None:
        async with self._engine.connect() as connection:
            made = await partitions.make_ahead(connection, now)
            dropped = await partitions.drop_before(connection, before)
        done.days_made, done.days_dropped = made.days, dropped.days
        failed = [changed for changed in (made, dropped) if changed.problem is not None]
        done.problems = [str(changed.problem) for changed in failed]
        done.busy = all(changed.busy for changed in failed)
        dialect = self._engine.dialect.name
        done.published = await self._in_batches(
            lambda limit: statements.published.prune_published(dialect, before, limit)
        )

    async def _in_batches(self, statement: Callable[[int], Delete]) -> int:
        total, deleted = 0, self._batch_size
        while deleted == self._batch_size:
            async with self._engine.begin() as connection:
                deleted = (await connection.execute(statement(self._batch_size))).rowcount
            total += deleted
        return total

    def _report(self, done: Pruned) -> None:
        self._log.info("inbox pruned", rows=done.inbox)
        if self._keep_published is not None:
            self._log.info(
                "published pruned",
                days_dropped=[str(day) for day in done.days_dropped],
                days_made=[str(day) for day in done.days_made],
                rows=done.published,
            )
        for problem in done.problems:
            self._log.warning("a partition stays as it is", problem=problem)
