"""The relay itself: turn after turn until it is stopped, or until everything that was due is published."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import migrations, statements
from outboxkit.brokers import Publisher
from outboxkit.outage import PASSING_SQLSTATES, Clock, Outage, jittered, pause, utc_now
from outboxkit.relay.pipeline import Pipeline
from outboxkit.relay.settlement import Policy, Settlement

BLOCKED_SECONDS = 0.02
"""How long a relay waits, at first, for another one that holds everything it could publish."""


@dataclass(slots=True)
class Drained:
    """What `drain` did.

    Attributes:
        published: messages that the broker confirmed.
        discarded: messages that no queue wanted and that were to be forgotten then.
        failed: how often each type could not be published, with the last reason.
        dead: how many messages of each type were given up, with the last reason.
        held: due rows that another relay holds, or that came back to wait.
        later: rows that wait for a later time.
    """

    published: int = 0
    discarded: int = 0
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    held: int = 0
    later: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether everything that was due has been published, or was given up as expired or unwanted."""
        return not self.failed and not self.dead and not self.held

    def add(self, settled: Settlement) -> None:
        """Count what became of one batch."""
        self.published += len(settled.published)
        self.discarded += len(settled.discarded)
        for row in settled.failed:
            self.failed[row.message.type] = (self.failed.get(row.message.type, (0, ""))[0] + 1, row.reason)
        for gone in settled.dead:
            self.dead[gone.message.type] = (self.dead.get(gone.message.type, (0, ""))[0] + 1, gone.error)


class Relay:
    """Publishes what transactions have left in the outbox, and deletes what the broker has confirmed.

    Any number of relays may run at once: their batches are disjoint, because the rows of a batch stay locked until
    it is settled. The lock is the lease: it ends with the connection, and no clock is compared. Messages of one key
    are published in the order of their positions, whichever relay has them.

    Args:
        engine: for the relay's own connections, two at a time.
        publisher: where messages go.
        batch_size: rows claimed at once.
        poll_interval: how long an idle relay sleeps where nothing wakes it.
        policy: what to do with messages that cannot be published.
        keep_published: move published rows to `outboxkit_published` instead of deleting them.
        clock: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        *,
        batch_size: int = 500,
        poll_interval: timedelta = timedelta(milliseconds=250),
        policy: Policy | None = None,
        keep_published: bool = False,
        clock: Clock = utc_now,
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._batch_size = batch_size
        self._poll_interval = poll_interval.total_seconds()
        self._clock = clock
        self._log = structlog.get_logger("outboxkit").bind(process="relay")
        self._pipeline = Pipeline(
            engine,
            publisher,
            batch_size=batch_size,
            policy=policy or Policy(),
            keep_published=keep_published,
            clock=clock,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set; the batch in flight is settled first. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
        """
        outage = Outage("relay", passing=PASSING_SQLSTATES)
        await outage.ride_out(self._check_schema, stop)
        self._log.info("relay started", batch_size=self._batch_size)
        blocked = BLOCKED_SECONDS
        async with self._pipeline:
            while not stop.is_set():
                settled = await outage.ride_out(lambda: self._pipeline.turn(self._clock(), stop), stop)
                if settled is None:
                    await pause(stop, jittered(self._poll_interval))
                elif not settled.settled:
                    await pause(stop, jittered(blocked))
                    blocked = min(blocked * 2, self._poll_interval)
                    continue
                blocked = BLOCKED_SECONDS
        await self._publisher.close()
        self._log.info("relay stopped")

    async def drain(self, stop: asyncio.Event, *, patience: timedelta = timedelta(seconds=10)) -> Drained:
        """Publish all that is due, then return. A message that fails is tried once; `stop` ends it early.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than `patience`.
        """
        outage = Outage("relay", patience=patience.total_seconds(), passing=PASSING_SQLSTATES)
        await outage.ride_out(self._check_schema, stop)
        done, as_of = Drained(), self._clock()
        waiting_since = self._clock()
        async with self._pipeline:
            while not stop.is_set():
                settled = await outage.ride_out(lambda: self._pipeline.turn(as_of, stop), stop)
                if settled is not None and settled.settled:
                    done.add(settled)
                    waiting_since = self._clock()
                    continue
                done.held, done.later = await outage.ride_out(self._counter(as_of), stop) or (0, 0)
                if not done.held or self._clock() - waiting_since > patience:
                    break
                self._pipeline.sweep()
                await pause(stop, jittered(BLOCKED_SECONDS))
        if stop.is_set():
            done.held, done.later = await outage.ride_out(self._counter(as_of), stop) or (0, 0)
        await self._publisher.close()
        return done

    async def _check_schema(self) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(migrations.check)

    def _counter(self, as_of: datetime) -> Callable[[], Awaitable[tuple[int, int]]]:
        async def count() -> tuple[int, int]:
            async with self._engine.connect() as connection:
                held = (await connection.execute(statements.status.count_due(as_of))).scalar_one()
                later = (await connection.execute(statements.status.count_later(as_of))).one()[0]
            return held, later

        return count
