"""The relay service: one turn after another until it is stopped, or until everything that was due is published."""

import asyncio
import logging
import time
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import defaults, schema, statements
from outboxkit.brokers import Publisher
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.relay.claim import Claimer
from outboxkit.relay.decisions import RelayPolicy, Settlement
from outboxkit.relay.notifier import Notifier
from outboxkit.relay.pipeline import Pipeline, Turn
from outboxkit.relay.report import Drained, LimitedLog, RelayMeasurements, report
from outboxkit.relay.settle import SettlementWriter
from outboxkit.relay.shares import MOST_SHARES
from outboxkit.retry import Backoff
from outboxkit.runtime import urls
from outboxkit.runtime.database_clock import DatabaseClock
from outboxkit.runtime.health import Health
from outboxkit.runtime.outage import Clock, Outage, check_engine_driver, is_unexpected, jittered, sleep_unless_stopped
from outboxkit.runtime.pauses.watch import PauseWatch, StopOrPause
from outboxkit.runtime.workers import RELAY, Presence
from outboxkit.schema import partitions
from outboxkit.statements.dialects import has_one_writer
from outboxkit.telemetry import catalogue, metrics
from outboxkit.telemetry.table_gauges import TableGauges

FIRST_BLOCKED_SECONDS, LONGEST_BLOCKED_SECONDS = 0.002, 1.0
"""The first delay of a relay that waits for another one, which holds every row it could publish. It doubles."""
UNEXPECTED = Backoff(base=timedelta(milliseconds=500), cap=timedelta(seconds=10))
"""The delay after an unexpected error; rows and counters are as they were."""
DRAIN_SECONDS = 0.02
"""The delay before a drain claims again rows that another relay has held."""
STAND_BY_SECONDS = 0.5
"""The delay before a relay that stands by looks again whether those that work off the backlog are gone."""


@dataclass(eq=False, repr=False)
class Relay:
    """A service that publishes the outbox's messages for one destination, and deletes those that are confirmed.

    Any number of relays may run at once: their batches are disjoint, because the rows of a batch stay locked until
    it is settled. The lock is the lease: it ends with the connection, and no clock is compared. Messages of one key
    are published in the order of their positions within a destination, whichever relay has them.

    If an event declares a reply, the destination's answer is added to the outbox for the destination `default`. That
    happens in the transaction that settles the event's own message.

    Attributes:
        engine: for up to five connections at a time. Two are for batches, one is for the listener, and pauses and the
            clock have one each.
        publisher: the broker's or the destination's.
        destination: the destination of these messages, set by `@event(..., destination=...)` or `outbox.add`.
        batch_size: the maximum number of rows claimed at once; fewer if they are large.
        poll_interval: how long an idle relay waits unless it is woken: a commit wakes relays of `default` only.
        policy: the rules for messages that cannot be published.
        keep_published: move published rows to `outboxkit_published` instead of deleting them.
        keeps_locks: whether the rows of a batch stay locked while they are published. They do, unless the database is
            SQLite and the publisher is slow, such as one for an HTTP server. There the file's one writer is free
            meanwhile, and the batch is settled in a second transaction. Deleted rows stay deleted and get no reply, and
            `outbox.cancel` does not wait for a message that is being published. A destination must have one relay
            only then, since two would publish the same rows.
        clock: for tests; None means the database's own clock.

    Raises:
        ConfigurationError: the engine has another driver than psycopg or aiosqlite.
    """

    engine: AsyncEngine
    publisher: Publisher
    _: KW_ONLY
    destination: str = DEFAULT_DESTINATION
    batch_size: int = defaults.BATCH_SIZE
    poll_interval: timedelta = defaults.POLL_INTERVAL
    policy: RelayPolicy = field(default_factory=RelayPolicy)
    keep_published: bool = False
    clock: Clock | None = None
    keeps_locks: bool = field(init=False)

    def __post_init__(self) -> None:
        check_engine_driver(self.engine, "a relay")
        dialect = self.engine.dialect.name
        self.keeps_locks = not (has_one_writer(dialect) and self.publisher.slow)
        self._log = structlog.get_logger("outboxkit").bind(process="relay")
        self._clock = DatabaseClock(self.engine, process="relay", clock=self.clock)
        self._now = self._clock.now
        self._notifier = Notifier(
            self.engine, destination=self.destination, poll_interval=self.poll_interval, clock=self._now
        )
        presence = Presence(
            *(self.engine, RELAY, self.destination, self.publisher.address, self.publisher.exchange),
            done=lambda: self._done.published,
            ahead=lambda: self._clock.ahead,
        )
        self._watch, self._errors = PauseWatch(self.engine, RELAY, self.destination, presence=presence), 0
        self._outage, self._turned = self._new_outage(), 0.0
        self._done, self._limited_log = Drained(), LimitedLog("relay")
        self._measurements = RelayMeasurements(self.publisher, self.destination)
        self._claimer = Claimer(
            self.engine,
            self.batch_size,
            destination=self.destination,
            keeps_locks=self.keeps_locks,
            most_shares=None if self.publisher.slow else MOST_SHARES,
        )
        self._pipeline = Pipeline(
            self._claimer,
            self.publisher,
            SettlementWriter(dialect, keep=self.keep_published, destination=self.destination),
            policy=self.policy,
            on_settled=self._settled,
            clock=self._now,
            measurements=self._measurements,
        )
        self._last_progress, self._stands_by = 0.0, False

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set, then settle the batch in flight. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: a pooler in transaction mode is in front of the database.
        """
        outage = self._outage
        with metrics.observed(self._gauges(outage)):
            self._measurements.begin()
            try:
                await self._run(outage, stop)
            finally:
                await self.publisher.close()
        self._log.info("relay stopped")

    async def _run(self, outage: Outage, stop: asyncio.Event) -> None:
        tables = TableGauges(self.engine)
        for prepare in (self._prepare, tables.open):
            await outage.ride_out(prepare, stop)
        if not outage.errors:  # else it was stopped before it could start
            self._say_started()
            outage.reached("database")
        await outage.ride_out(self._watch.poll, stop)
        clock = asyncio.create_task(self._clock.run())
        try:
            with tables.observed():
                async with schema.blamed(self.engine), self._watch.watching(), self._pipeline:
                    await self._loop(outage, stop)
        except asyncio.CancelledError:
            self._log.warning("relay stopped at once; the batch in flight is rolled back and will be published again")
            raise
        finally:
            clock.cancel()
            self._limited_log.flush(everything=True)
            self._turned = 0.0
            await self._notifier.close()

    def _new_outage(self, patience: float | None = None) -> Outage:
        named = None if self.destination == DEFAULT_DESTINATION else self.destination
        return Outage(
            "relay",
            destination=named,
            peer=self.publisher.peer,
            trouble=lambda: self.publisher.trouble,
            patience=patience,
            passing=TRANSIENT,
        )

    def _gauges(self, outage: Outage) -> dict[catalogue.Metric, metrics.Read]:
        """The gauges of a relay that runs. They are read in another thread, and also while the relay hangs."""
        servers, ours = ("broker", "database"), {"destination": self.destination}
        gauges: dict[catalogue.Metric, metrics.Read] = {
            catalogue.RELAY_CONNECTED: lambda: [
                (int(not outage.is_away(each)), ours | {"server": each}) for each in servers
            ],
            catalogue.RELAY_LAST_PROGRESS: lambda: (
                [(max(self._last_progress, self._watch.rested_at), ours)]
                if self._last_progress or self._watch.rested_at
                else []
            ),
            catalogue.FLOOR_GAP: lambda: [(self._claimer.floor.gap, {})],
        }
        return gauges | self._clock.gauges()

    def health(self) -> Health:
        """The state of this relay while it runs, from any thread."""
        now, since = time.monotonic(), self._pipeline.publishing_since
        errors, is_resting = self._outage.errors, self._watch.is_resting
        return Health(
            "relay",
            publishing=None if since is None else now - since,
            has_slow_publisher=self.publisher.slow,
            without_turn=None if errors or is_resting or not self._turned else now - self._turned,
            servers={
                "broker": None if is_resting else errors.get("broker") or self.publisher.trouble,
                "database": errors.get("database"),
            },
        )

    async def _loop(self, outage: Outage, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._keep_pause(outage, stop)
                async with self._watch.stop_or_pause(stop) as halt:
                    await self._take_turns(outage, halt)
            except (Exception, asyncio.CancelledError) as error:
                if not is_unexpected(error):
                    raise
                self._errors += 1
                self._report_unexpected(error)
                await sleep_unless_stopped(stop, UNEXPECTED.after(self._errors).total_seconds())

    async def _take_turns(self, outage: Outage, halt: StopOrPause) -> None:
        """One turn after another, until the relay is to pause or to stop."""
        blocked_seconds = FIRST_BLOCKED_SECONDS
        while not halt.is_set():
            self._turned = time.monotonic()
            self._limited_log.flush()
            turn = await self._take_turn(outage, halt)
            self._errors, self._last_progress = 0, time.time()
            if await self._stand_by(halt, wanted=turn is Turn.BLOCKED):
                blocked_seconds = FIRST_BLOCKED_SECONDS
            elif turn is Turn.BLOCKED:
                await sleep_unless_stopped(halt, jittered(blocked_seconds))
                blocked_seconds = min(blocked_seconds * 2, LONGEST_BLOCKED_SECONDS)
            else:
                blocked_seconds = FIRST_BLOCKED_SECONDS

    async def _take_turn(self, outage: Outage, halt: StopOrPause) -> Turn | None:
        """One turn, and the wait after a turn without rows."""
        turn = await outage.ride_out(lambda: self._pipeline.turn(self._now(), halt), halt)
        if turn is not None:
            outage.reached("broker")
        self._turned = time.monotonic()  # again: the turn may have waited out an outage
        if turn in (Turn.MOVED, Turn.CAUGHT_UP):
            await self._notifier.busy()
        if turn is Turn.NOTHING or (turn is Turn.CAUGHT_UP and self._notifier.is_woken):
            is_up, floor = turn is Turn.CAUGHT_UP, self._claimer.floor.value
            await outage.ride_out(lambda: self._notifier.wait(halt, floor=floor, caught_up=is_up), halt)
        return turn

    async def _stand_by(self, stop: asyncio.Event, *, wanted: bool) -> bool:
        """If it is wanted and other relays work off the backlog: wait a moment. Returns whether it did."""
        before, self._stands_by = self._stands_by, wanted and self._claimer.stands_by
        if before != self._stands_by:
            change = "stands by while others work off the backlog" if self._stands_by else "no longer stands by"
            self._log.info(f"relay {change}", destination=self.destination)
        if not self._stands_by:
            return False
        await self._notifier.close()  # else inserts notify for a relay that does not hear it
        await sleep_unless_stopped(stop, jittered(STAND_BY_SECONDS))
        return True

    async def _keep_pause(self, outage: Outage, stop: asyncio.Event) -> None:
        """If there is a pause: settle what is in flight, hold no row and no connection, and wait for its end."""
        if self._watch.current is None:
            return
        await outage.ride_out(self._pipeline.release, stop)
        await self._notifier.close()  # unused, its connection would be found broken long after an outage
        await self._watch.wait_for_end(stop)
        self._turned = time.monotonic()

    def _report_unexpected(self, error: BaseException) -> None:
        text = first_line(error)
        trace = None if isinstance(error, DBAPIError) else error  # a DBAPIError's text has the values of parameters
        self._limited_log.say(logging.ERROR, "unexpected error, the relay goes on", text, error=text, exc_info=trace)

    @property
    def published(self) -> int:
        """The number of messages that it has published so far."""
        return self._done.published

    async def drain(self, stop: asyncio.Event, *, patience: timedelta = defaults.PUBLISH_TIMEOUT) -> Drained:
        """Publish all that is due, then return. A message that fails is tried once; `stop` or a pause ends it early.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: a pooler in transaction mode is in front of the database.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: an outage lasted longer than `patience`.
        """
        try:
            return await self._drain(stop, patience)
        finally:
            await self.publisher.close()

    async def _drain(self, stop: asyncio.Event, patience: timedelta) -> Drained:
        outage = self._new_outage(patience.total_seconds())
        await outage.ride_out(self._prepare, stop)
        outage.reached("database")
        self._say_started()
        await outage.ride_out(self._watch.poll, stop)
        totals = self._done = Drained()
        as_of = waiting_since = self._now()
        async with schema.blamed(self.engine), self._watch.watching(), self._pipeline:
            while not stop.is_set() and self._watch.current is None:
                self._limited_log.flush()
                turn = await outage.ride_out(lambda: self._pipeline.turn(as_of, stop), stop)
                has_moved = turn in (Turn.MOVED, Turn.CAUGHT_UP)
                if await self._stand_by(stop, wanted=not has_moved) or has_moved:
                    waiting_since = self._now()
                    continue
                before = totals.blocked
                totals.blocked, totals.later = await outage.ride_out(lambda: self._count(as_of), stop) or (None, 0)
                if before and totals.blocked and totals.blocked < before:  # another relay publishes
                    waiting_since = self._now()
                if not totals.blocked or self._now() - waiting_since > patience:
                    break
                self._claimer.sweep()
                await sleep_unless_stopped(stop, jittered(DRAIN_SECONDS))
        totals.paused = self._watch.current
        if stop.is_set() or totals.paused:  # an outage of its own: a database that answers ends no broker outage
            counting = self._new_outage()
            totals.blocked, totals.later = await counting.ride_out(lambda: self._count(as_of), stop) or (None, 0)
            totals.away, totals.stopped = outage.words, stop.is_set()
        self._limited_log.flush(everything=True)
        return totals

    def _say_started(self) -> None:
        self._log.info(
            "relay started",
            destination=self.destination,
            batch_size=self.batch_size,
            database=urls.shown(self.engine.url),
            broker=self.publisher.address,
            **({} if self.publisher.exchange is None else {"exchange": self.publisher.exchange}),
        )

    async def _prepare(self) -> None:
        await schema.check_worker(self.engine)
        await self._clock.once()
        if self.keep_published:
            async with self.engine.connect() as connection:
                await partitions.prepare_partitions(connection)

    def _settled(self, settlement: Settlement) -> None:
        self._done.add(settlement)
        report(settlement, self._limited_log)

    async def _count(self, as_of: datetime) -> tuple[int, int]:
        """The number of rows that are still due, and of those that wait for a later time."""
        parameters = {"destination": self.destination}
        async with self.engine.connect() as connection:
            still_due = (await connection.execute(statements.claim.count_due(as_of), parameters)).scalar_one()
            later = (await connection.execute(statements.claim.count_later(as_of), parameters)).scalar_one()
        return still_due, later
