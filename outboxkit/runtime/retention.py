"""Retention: deletes rows that are old enough, in small batches and whole days, so that nothing has to wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Delete
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import ReturningDelete

from outboxkit import schema, statements
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.runtime import urls, window
from outboxkit.runtime.health import Health
from outboxkit.runtime.lifetime import end_tasks
from outboxkit.runtime.outage import Clock, Outage, Sleep, sleep_unless_stopped
from outboxkit.runtime.workers import RETENTION, Presence
from outboxkit.schema import partitions
from outboxkit.statements.dialects import is_server
from outboxkit.statements.partitions import INBOX
from outboxkit.telemetry.table_gauges import TableGauges

ROWS_AT_ONCE = 1000
BATCH_DELAY = timedelta(milliseconds=20)
"""The delay between two batches, in which other transactions proceed."""
UNPLACED_BEHIND, UNPLACED_AHEAD = timedelta(days=2), timedelta(days=31)
"""The range of days that the inbox's default partition is searched for: behind the retention, and ahead of today."""


@dataclass(slots=True)
class Pruned:
    """The result of one round of pruning.

    Attributes:
        alone: False if another process prunes at this moment; then nothing was done.
        inbox: inbox rows that were deleted one by one, because their ids belong to no day's partition.
        inbox_days_made: days that have a partition of `outboxkit_inbox` now.
        inbox_days_dropped: days whose inbox rows were deleted, all at once.
        attempts: messages whose counted starts and failures were deleted.
        dead_open: those of the deleted dead letters that were neither replayed nor discarded.
        days_dropped: days that were dropped with all their messages.
        published: kept messages that were deleted one by one, because their day had no partition.
        untouched: whether there are kept messages, and no retention for them is set.
        busy: whether all of the problems are locks, which end by themselves.
    """

    alone: bool = True
    inbox: int = 0
    inbox_days_made: list[date] = field(default_factory=list)
    inbox_days_dropped: list[date] = field(default_factory=list)
    attempts: int = 0
    dead: int = 0
    dead_open: int = 0
    idempotency: int = 0
    effects: int = 0
    days_made: list[date] = field(default_factory=list)
    days_dropped: list[date] = field(default_factory=list)
    published: int = 0
    untouched: bool = False
    problems: list[str] = field(default_factory=list)
    busy: bool = True

    def note(self, changed: partitions.Changed) -> list[date]:
        """Add the problem, if there is one; returns the days that were changed."""
        if changed.problem is not None:
            self.problems.append(changed.problem)
            self.busy = self.busy and changed.busy
        return changed.days


@dataclass(frozen=True, slots=True)
class Periods:
    """The minimum time for which each kind of row is kept.

    Attributes:
        inbox: inbox rows, and effects since their last use.
        skew: how far clocks may differ: inbox rows and effects are kept so much longer.
        published: kept published messages; None leaves them alone.
        dead: dead letters that park no key; None keeps them for ever.
    """

    inbox: timedelta
    skew: timedelta = window.CLOCK_SKEW
    published: timedelta | None = None
    dead: timedelta | None = None


class _Stopped(Exception):
    """Retention is told to stop between two batches: the rest of the round is left to the next one."""


class Retention:
    """Deletes rows older than their retention: inbox rows, effects, requests, kept messages and dead letters.

    On PostgreSQL one process does so at a time. A message whose inbox row is gone is stale to every consumer of the
    same retention and skew. So neither the row nor its effects are needed any more. Requests carry the expiry of their
    own idempotency keys.

    Args:
        engine: for its own connections, two at once.
        periods: the minimum times.
        batch_size: rows deleted in one transaction.
        pause: the time between two of them.
        clock: None means the database's own.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        periods: Periods,
        *,
        batch_size: int = ROWS_AT_ONCE,
        pause: timedelta = BATCH_DELAY,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._periods = periods
        self._batch_size = batch_size
        self._pause = pause.total_seconds()
        self._clock = clock
        self._sleep = sleep
        self._stop = asyncio.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="retention")

    @property
    def engine(self) -> AsyncEngine:
        """The engine of its own connections."""
        return self._engine

    def health(self) -> Health:
        """The state of this retention, which needs nothing but the database."""
        return Health("retention")

    async def prune(self, done: Pruned | None = None) -> Pruned:
        """Delete rows that are old enough, and on PostgreSQL create the partitions of the days ahead.

        The totals are added to `done`, batch by batch, and returned.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: a pooler in transaction mode is in front of the database.
        """
        done = done or Pruned()
        await schema.check_worker(self._engine)
        async with self._engine.connect() as connection:
            now = self._clock() if self._clock is not None else await partitions.clock(connection)
        async with self._alone() as done.alone:
            if done.alone:
                with suppress(_Stopped):
                    await self._prune(done, now)
        return done

    async def _prune(self, done: Pruned, now: datetime) -> None:
        """Effects go first, while the inbox still tells what was handled."""
        dialect, of = self._engine.dialect.name, statements.retention
        before = window.forget_before(now, retention=self._periods.inbox, skew=self._periods.skew)
        await self._delete(done, "effects", lambda limit: of.prune_effects(dialect, before, limit))
        await self._prune_inbox(done, now, before)
        await self._prune_dead(done, now)
        async with self._engine.begin() as connection:
            await connection.execute(statements.retention.prune_handlers(before))
        await self._delete(done, "idempotency", lambda limit: of.prune_idempotency(dialect, now, limit))
        await self._prune_published(done, now)

    async def run(self, stop: asyncio.Event, *, interval: timedelta) -> None:
        """Prune now and then again after each interval, until `stop` is set. Outages are waited out."""
        outage, self._stop = Outage("retention", passing=TRANSIENT), stop
        self._log.info("retention started", database=urls.shown(self._engine.url))
        tables = TableGauges(self._engine)
        await outage.ride_out(tables.open, stop)
        outage.reached("database")
        present = asyncio.create_task(Presence(self._engine, RETENTION).run())
        try:
            with tables.observed():
                await self._repeat(outage, stop, interval)
        finally:
            await end_tasks([present])

    async def _repeat(self, outage: Outage, stop: asyncio.Event, interval: timedelta) -> None:
        while not stop.is_set():
            done = await outage.ride_out(self.prune, stop)
            if done is not None:
                self._report(done)
            await sleep_unless_stopped(stop, interval.total_seconds())

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[bool]:
        """Whether no other process prunes. Its connection is in no transaction, so it holds back no vacuum."""
        if not is_server(self._engine.dialect.name):
            yield True
            return
        async with self._engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            alone = bool((await connection.execute(statements.retention.try_prune_lock())).scalar_one())
            try:
                yield alone
            finally:
                if alone:
                    await connection.execute(statements.retention.release_prune_lock())

    async def _prune_inbox(self, done: Pruned, now: datetime, before: datetime) -> None:
        """Expired days are dropped first; partitions are then created only for rows that must stay."""
        dialect = self._engine.dialect.name
        async with self._engine.connect() as connection:
            dropped = await partitions.drop_before(connection, before, INBOX)
        done.note(dropped)
        done.inbox_days_dropped = dropped.emptied
        await self._delete(done, "inbox", lambda limit: statements.retention.prune_inbox(dialect, before, limit))
        await self._delete(done, "attempts", lambda limit: statements.retention.prune_attempts(before, limit))
        async with self._engine.connect() as connection:
            done.inbox_days_made = done.note(await partitions.make_ahead(connection, INBOX, now))
            first, last = before - UNPLACED_BEHIND, now + UNPLACED_AHEAD
            done.inbox_days_made += done.note(await partitions.make_behind(connection, first, last))

    async def _prune_dead(self, done: Pruned, now: datetime) -> None:
        if self._periods.dead is None:
            return
        before, deleted = now - self._periods.dead, self._batch_size
        while deleted == self._batch_size:
            async with self._engine.begin() as connection:
                statement: ReturningDelete[Any] = statements.retention.prune_dead(before, self._batch_size)
                resolutions = (await connection.execute(statement)).scalars().all()
            deleted = len(resolutions)
            done.dead += deleted
            done.dead_open += sum(resolution is None for resolution in resolutions)
            await self._pause_after(deleted)

    async def _prune_published(self, done: Pruned, now: datetime) -> None:
        if self._periods.published is None:
            async with self._engine.connect() as connection:
                done.untouched = (await connection.execute(statements.retention.any_published())).first() is not None
            return
        before, dialect = now - self._periods.published, self._engine.dialect.name
        async with self._engine.connect() as connection:
            done.days_made = done.note(await partitions.make_ahead(connection, now=now))
            done.days_dropped = done.note(await partitions.drop_before(connection, before))
        await self._delete(
            done, "published", lambda limit: statements.retention.prune_published(dialect, before, limit)
        )

    async def _delete(self, done: Pruned, counter: str, statement: Callable[[int], Delete]) -> None:
        """Delete in batches, each in a transaction of its own, and add their rows to one of the counters of `done`."""
        deleted = self._batch_size
        while deleted == self._batch_size:
            async with self._engine.begin() as connection:
                deleted = (await connection.execute(statement(self._batch_size))).rowcount
            setattr(done, counter, getattr(done, counter) + deleted)
            await self._pause_after(deleted)

    async def _pause_after(self, deleted: int) -> None:
        if deleted == self._batch_size:
            await sleep_unless_stopped(self._stop, self._pause, self._sleep)
            if self._stop.is_set():
                raise _Stopped

    def _report(self, done: Pruned) -> None:
        if not done.alone:
            self._log.info("another process prunes")
            return
        self._log.info("inbox pruned", rows=done.inbox, **_days(done.inbox_days_dropped, done.inbox_days_made))
        if self._periods.dead is not None:
            self._log.info("dead letters pruned", rows=done.dead, open=done.dead_open)
        self._log.info("idempotency keys pruned", rows=done.idempotency)
        self._log.info("effects pruned", rows=done.effects)
        if self._periods.published is not None:
            self._log.info("published pruned", rows=done.published, **_days(done.days_dropped, done.days_made))
        for problem in done.problems:
            self._log.warning("a partition was left as it is", problem=problem)


def _days(dropped: list[date], created: list[date]) -> dict[str, list[str]]:
    return {"days_dropped": [str(day) for day in dropped], "days_made": [str(day) for day in created]}
