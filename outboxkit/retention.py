"""Retention: what is old enough is forgotten, in small batches and whole days, so that nothing else has to wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Delete
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import ReturningDelete

from outboxkit import partitions, schema, statements, urls, window
from outboxkit.outage import Clock, Outage, Sleep, pause

BATCH_SIZE = 1000
PAUSE = timedelta(milliseconds=20)
"""Between two batches, for everybody else."""
UNPLACED_BEHIND, UNPLACED_AHEAD = timedelta(days=2), timedelta(days=31)
"""How far beyond what is kept, and beyond today, the inbox's default partition is looked through for days."""


@dataclass(slots=True)
class Pruned:
    """What a round of pruning did.

    Attributes:
        alone: False where somebody else prunes at this moment; then nothing was done.
        inbox: inbox rows that were forgotten one by one, because their ids are in no day's partition.
        inbox_days_made: days that have a partition of `outboxkit_inbox` now.
        inbox_days_dropped: days whose inbox rows were forgotten, all at once.
        attempts: messages whose counted starts and failures were forgotten.
        dead: dead letters that were forgotten.
        dead_open: how many of them were neither replayed nor discarded.
        idempotency: requests whose idempotency keys have expired, which were forgotten.
        effects: effects that were forgotten.
        days_made: days to come that have a partition of `outboxkit_published` now.
        days_dropped: days that were dropped with all their messages.
        published: kept messages that were forgotten one by one, because their day had no partition.
        untouched: messages are kept, and nothing says for how long.
        problems: what could not be done.
        busy: whether all of the problems are locks, which somebody holds for now.
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
        """Add what could not be done to the problems; returns the days for which it was."""
        if changed.problem is not None:
            self.problems.append(changed.problem)
            self.busy = self.busy and changed.busy
        return changed.days


Show = Callable[[Pruned], None]
"""Is called after each step of a round, for a bar on a terminal."""


@dataclass(frozen=True, slots=True)
class Periods:
    """How long what is kept, at least.

    Attributes:
        inbox: inbox rows, and effects since their start.
        skew: how far clocks may be apart: inbox rows and effects are kept so much longer.
        published: kept published messages; where None they are left alone.
        dead: dead letters that park no key; where None they stay.
    """

    inbox: timedelta
    skew: timedelta = timedelta(minutes=5)
    published: timedelta | None = None
    dead: timedelta | None = None


class Retention:
    """Forgets what is older than its retention: inbox rows, effects, requests, kept messages and dead letters.

    One at a time does so on PostgreSQL. A message whose inbox row is gone is stale to every consumer of the same
    retention and skew, so neither the row nor its effects will be asked for again. Requests say themselves when their
    idempotency keys expire.

    Args:
        engine: for its own connections, two at once.
        periods: how long what is kept.
        batch_size: rows deleted in one transaction.
        pause: between two of them.
        clock: for tests; the database's own where None.
        sleep: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        periods: Periods,
        *,
        batch_size: int = BATCH_SIZE,
        pause: timedelta = PAUSE,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._periods = periods
        self._batch_size = batch_size
        self._pause = pause.total_seconds()
        self._clock = clock
        self._sleep = sleep
        self._log = structlog.get_logger("outboxkit").bind(process="retention")

    async def prune(self, show: Show = lambda _: None) -> Pruned:
        """Forget what is old enough, and on PostgreSQL make the partitions of the days to come.

        Raises:
            SchemaError: the tables are missing or old.
        """
        done = Pruned()
        async with self._engine.begin() as connection:
            await connection.run_sync(schema.check)
            now = self._clock() if self._clock is not None else await partitions.clock(connection)
        async with self._alone() as done.alone:
            if done.alone:
                await self._prune_inbox(done, now, show)
                await self._prune_dead(done, now, show)
                await self._prune_handlers(now)
                await self._prune_requests(done, now, show)
                await self._prune_published(done, now, show)
        return done

    async def run(self, stop: asyncio.Event, *, interval: timedelta) -> None:
        """Prune now and then again after each interval, until `stop` is set. Outages are waited out."""
        outage = Outage("retention")
        self._log.info("retention started", database=urls.shown(self._engine.url))
        while not stop.is_set():
            done = await outage.ride_out(self.prune, stop)
            if done is not None:
                self._report(done)
            await pause(stop, interval.total_seconds())

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[bool]:
        """Whether nobody else prunes. The connection is in no transaction, so it holds back no vacuum."""
        if self._engine.dialect.name != "postgresql":
            yield True
            return
        async with self._engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            alone = bool((await connection.execute(statements.published.try_prune_lock())).scalar_one())
            try:
                yield alone
            finally:
                if alone:
                    await connection.execute(statements.published.release_prune_lock())

    async def _prune_inbox(self, done: Pruned, now: datetime, show: Show) -> None:
        """Days are made after those that are over went, and only for what may not go yet."""
        dialect, periods = self._engine.dialect.name, self._periods
        before = window.forget_before(now, retention=periods.inbox, skew=periods.skew)
        async with self._engine.connect() as connection:
            dropped = await partitions.drop_before(connection, before, partitions.INBOX)
        done.note(dropped)
        done.inbox_days_dropped = dropped.emptied
        show(done)
        async for deleted in self._in_batches(lambda limit: statements.inbox.prune_inbox(dialect, before, limit)):
            done.inbox += deleted
            show(done)
        async for deleted in self._in_batches(lambda limit: statements.inbox.prune_attempts(before, limit)):
            done.attempts += deleted
        async with self._engine.connect() as connection:
            done.inbox_days_made = done.note(await partitions.make_ahead(connection, partitions.INBOX, now))
            first, last = before - UNPLACED_BEHIND, now + UNPLACED_AHEAD
            done.inbox_days_made += done.note(await partitions.make_behind(connection, first, last))
        show(done)

    async def _prune_dead(self, done: Pruned, now: datetime, show: Show) -> None:
        if self._periods.dead is None:
            return
        before, deleted = now - self._periods.dead, self._batch_size
        while deleted == self._batch_size:
            async with self._engine.begin() as connection:
                statement: ReturningDelete[Any] = statements.published.prune_dead(before, self._batch_size)
                found = (await connection.execute(statement)).scalars().all()
            deleted = len(found)
            done.dead += deleted
            done.dead_open += sum(resolution is None for resolution in found)
            show(done)
            await self._breathe(deleted)

    async def _prune_handlers(self, now: datetime) -> None:
        before = window.forget_before(now, retention=self._periods.inbox, skew=self._periods.skew)
        async with self._engine.begin() as connection:
            await connection.execute(statements.activity.prune_handlers(before))

    async def _prune_requests(self, done: Pruned, now: datetime, show: Show) -> None:
        """What was answered at the HTTP door, and the calls that were made behind it."""
        dialect = self._engine.dialect.name
        async for deleted in self._in_batches(
            lambda limit: statements.published.prune_idempotency(dialect, now, limit)
        ):
            done.idempotency += deleted
            show(done)
        before = window.forget_before(now, retention=self._periods.inbox, skew=self._periods.skew)
        async for deleted in self._in_batches(lambda limit: statements.published.prune_effects(dialect, before, limit)):
            done.effects += deleted
            show(done)

    async def _prune_published(self, done: Pruned, now: datetime, show: Show) -> None:
        if self._periods.published is None:
            async with self._engine.connect() as connection:
                done.untouched = (await connection.execute(statements.published.any_published())).first() is not None
            return
        before, dialect = now - self._periods.published, self._engine.dialect.name
        async with self._engine.connect() as connection:
            done.days_made = done.note(await partitions.make_ahead(connection, now=now))
            done.days_dropped = done.note(await partitions.drop_before(connection, before))
        show(done)
        async for deleted in self._in_batches(
            lambda limit: statements.published.prune_published(dialect, before, limit)
        ):
            done.published += deleted
            show(done)

    async def _in_batches(self, statement: Callable[[int], Delete]) -> AsyncIterator[int]:
        deleted = self._batch_size
        while deleted == self._batch_size:
            async with self._engine.begin() as connection:
                deleted = (await connection.execute(statement(self._batch_size))).rowcount
            yield deleted
            await self._breathe(deleted)

    async def _breathe(self, deleted: int) -> None:
        if deleted == self._batch_size:
            await self._sleep(self._pause)

    def _report(self, done: Pruned) -> None:
        if not done.alone:
            self._log.info("somebody else prunes")
            return
        self._log.info("inbox pruned", rows=done.inbox, **_days(done.inbox_days_dropped, done.inbox_days_made))
        if self._periods.dead is not None:
            self._log.info("dead letters pruned", rows=done.dead, open=done.dead_open)
        self._log.info("idempotency keys pruned", rows=done.idempotency)
        self._log.info("effects pruned", rows=done.effects)
        if self._periods.published is not None:
            self._log.info("published pruned", rows=done.published, **_days(done.days_dropped, done.days_made))
        for problem in done.problems:
            self._log.warning("a partition stays as it is", problem=problem)


def _days(dropped: list[date], made: list[date]) -> dict[str, list[str]]:
    return {"days_dropped": [str(day) for day in dropped], "days_made": [str(day) for day in made]}
