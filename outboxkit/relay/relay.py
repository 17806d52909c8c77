"""The relay itself: turn after turn until it is stopped, or until everything that was due is published."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import migrations, partitions, statements
from outboxkit.brokers import Publisher
from outboxkit.outage import PASSING_SQLSTATES, Clock, Outage, jittered, pause, utc_now
from outboxkit.relay.outcome import Drained, report
from outboxkit.relay.pipeline import Pipeline, Turn
from outboxkit.relay.settlement import Policy, Settlement
from outboxkit.wakeup import Wakeup

BLOCKED_SECONDS = 0.002
"""How long a relay waits, at first, for another one that holds everything it could publish."""


DRAIN_SECONDS = 0.02
"""How long a drain waits before it looks again for rows that another relay holds."""


class Relay:
    """Publishes what transactions have left in the outbox, and deletes what the broker has confirmed.

    Any number of relays may run at once: their batches are disjoint, because the rows of a batch stay locked until
    it is settled. The lock is the lease: it ends with the connection, and no clock is compared. Messages of one key
    are published in the order of their positions, whichever relay has them.

    Args:
        engine: for the relay's own connections, two at a time.
        publisher: where messages go.
        batch_size: rows claimed at once, at most; fewer where they are large.
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
        batch_size: int = 2000,
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
        self._keep_published = keep_published
        self._wakeup = Wakeup(engine, poll_interval=poll_interval, clock=clock)
        self._done = Drained()
        self._pipeline = Pipeline(
            engine,
            publisher,
            batch_size=batch_size,
            policy=policy or Policy(),
            keep_published=keep_published,
            on_settled=self._settled,
            clock=clock,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set; the batch in flight is settled first. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
        """
        outage = Outage("relay", passing=PASSING_SQLSTATES)
        await outage.ride_out(self._get_ready, stop)
        self._log.info("relay started", batch_size=self._batch_size)
        try:
            async with self._pipeline:
                await self._turn_after_turn(outage, stop)
        finally:
            await self._wakeup.close()
        await self._publisher.close()
        self._log.info("relay stopped")

    async def _turn_after_turn(self, outage: Outage, stop: asyncio.Event) -> None:
        blocked = BLOCKED_SECONDS
        while not stop.is_set():
            turned = await outage.ride_out(lambda: self._pipeline.turn(self._clock(), stop), stop)
            if turned is Turn.BLOCKED:
                await pause(stop, jittered(blocked))
                blocked = min(blocked * 2, self._poll_interval)
                continue
            blocked = BLOCKED_SECONDS
            if turned is Turn.MOVED:
                await self._wakeup.busy()
            elif turned is Turn.NOTHING:
                await outage.ride_out(lambda: self._wakeup.wait(stop, floor=self._pipeline.floor), stop)

    async def drain(self, stop: asyncio.Event, *, patience: timedelta = timedelta(seconds=10)) -> Drained:
        """Publish all that is due, then return. A message that fails is tried once; `stop` ends it early.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than `patience`.
        """
        outage = Outage("relay", patience=patience.total_seconds(), passing=PASSING_SQLSTATES)
        await outage.ride_out(self._get_ready, stop)
        done = self._done = Drained()
        as_of = waiting_since = self._clock()
        async with self._pipeline:
            while not stop.is_set():
                turned = await outage.ride_out(lambda: self._pipeline.turn(as_of, stop), stop)
                if turned is Turn.MOVED:
                    waiting_since = self._clock()
                    continue
                done.held, done.later = await outage.ride_out(self._counter(as_of), stop) or (None, 0)
                if not done.held or self._clock() - waiting_since > patience:
                    break
                self._pipeline.sweep()
                await pause(stop, jittered(DRAIN_SECONDS))
        if stop.is_set():
            done.held, done.later = await outage.ride_out(self._counter(as_of), stop) or (None, 0)
        await self._publisher.close()
        return done

    async def _get_ready(self) -> None:
        await migrations.check_engine(self._engine)
        if self._keep_published:
            async with self._engine.connect() as connection:
                await partitions.prepare_partitions(connection)

    def _settled(self, settlement: Settlement) -> None:
        self._done.add(settlement)
        report(settlement)

    def _counter(self, as_of: datetime) -> Callable[[], Awaitable[tuple[int, int]]]:
        async def count() -> tuple[int, int]:
            async with self._engine.connect() as connection:
                held = (await connection.execute(statements.status.count_due(as_of))).scalar_one()
                later = (await connection.execute(statements.status.count_later(as_of))).one()[0]
            return held, later

        return count
