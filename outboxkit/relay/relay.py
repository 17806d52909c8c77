"""The relay itself: turn after turn until it is stopped, or until everything that was due is published."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions, schema, statements, urls
from outboxkit.brokers import Publisher, address_of, is_slow
from outboxkit.errors import ConfigurationError
from outboxkit.failures import first_line
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.outage import PASSING_SQLSTATES, Clock, Outage, is_surprise, jittered, pause, utc_now
from outboxkit.relay.claim import Claimer
from outboxkit.relay.decisions import Policy, Settlement
from outboxkit.relay.notifier import Notifier
from outboxkit.relay.pipeline import Pipeline, Turn
from outboxkit.relay.report import Drained, LimitedLog, report
from outboxkit.relay.settle import SettlementWriter
from outboxkit.retry import Backoff

BLOCKED_SECONDS = 0.002
"""How long a relay waits, at first, for another one that holds everything it could publish."""
SURPRISED = Backoff(base=timedelta(milliseconds=500), cap=timedelta(seconds=10))
"""How long a relay waits after an error that nobody foresaw; rows and counters are as they were."""
DRAIN_SECONDS = 0.02
"""How long a drain waits before it looks again for rows that another relay holds."""


@dataclass(eq=False, repr=False)
class Relay:
    """Publishes what transactions have left in the outbox for a destination, and deletes what was confirmed.

    Any number of relays may run at once: their batches are disjoint, because the rows of a batch stay locked until
    it is settled. The lock is the lease: it ends with the connection, and no clock is compared. Messages of one key
    are published in the order of their positions within a destination, whichever relay has them.

    Where an event asks for a reply, what the destination has answered is added to the outbox, for the destination
    `default`, in the transaction that settles the message.

    Attributes:
        engine: for the relay's own connections, two at a time.
        publisher: where messages go.
        destination: which messages go there: those of `@event(..., destination=...)`, or of `outbox.add`.
        batch_size: rows claimed at once, at most; fewer where they are large.
        poll_interval: how long an idle relay sleeps where nothing wakes it: a commit wakes relays of `default` only.
        policy: what to do with messages that cannot be published.
        keep_published: move published rows to `outboxkit_published` instead of deleting them.
        hold: keep the rows of a batch locked while they are published. None: unless it is SQLite and the publisher is
            slow, such as that of an HTTP server: the one writer of the file is free meanwhile, and the batch is settled
            in a transaction of its own, in which rows that are gone stay gone and have no reply. Then a destination
            must have one relay only, for two would publish the same rows, and `outbox.cancel` does not wait for a
            message that is being published.
        clock: for tests.

    Raises:
        ConfigurationError: `hold=False` with PostgreSQL, where locked rows are in nobody's way.
    """

    engine: AsyncEngine
    publisher: Publisher
    _: KW_ONLY
    destination: str = DEFAULT_DESTINATION
    batch_size: int = 2000
    poll_interval: timedelta = timedelta(milliseconds=250)
    policy: Policy = field(default_factory=Policy)
    keep_published: bool = False
    hold: bool | None = None
    clock: Clock = utc_now

    def __post_init__(self) -> None:
        dialect = self.engine.dialect.name
        if self.hold is None:
            self.hold = not (dialect == "sqlite" and is_slow(self.publisher))
        if not self.hold and dialect != "sqlite":
            raise ConfigurationError(f"hold=False is for SQLite, and the database is {dialect}: leave it out")
        self._log = structlog.get_logger("outboxkit").bind(process="relay")
        self._wakeup = Notifier(
            self.engine, destination=self.destination, poll_interval=self.poll_interval, clock=self.clock
        )
        self._done, self._told = Drained(), LimitedLog("relay")
        self._pipeline = Pipeline(
            Claimer(self.engine, self.batch_size, destination=self.destination, hold=self.hold),
            self.publisher,
            SettlementWriter(dialect, keep=self.keep_published, destination=self.destination),
            policy=self.policy,
            on_settled=self._settled,
            clock=self.clock,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set; the batch in flight is settled first. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
        """
        outage = Outage("relay", passing=PASSING_SQLSTATES)
        await outage.ride_out(self._get_ready, stop)
        self._say_started()
        try:
            async with self._pipeline:
                await self._turn_after_turn(outage, stop)
        except asyncio.CancelledError:
            self._log.warning("relay stopped at once; what was in flight is rolled back and comes again")
            raise
        finally:
            self._told.flush(everything=True)
            await self._wakeup.close()
        await self.publisher.close()
        self._log.info("relay stopped")

    async def _turn_after_turn(self, outage: Outage, stop: asyncio.Event) -> None:
        blocked, surprises = BLOCKED_SECONDS, 0
        while not stop.is_set():
            self._told.flush()
            try:
                turned = await self._take_turn(outage, stop)
            except (Exception, asyncio.CancelledError) as error:
                if not is_surprise(error):
                    raise
                surprises += 1
                self._surprised(error)
                await pause(stop, SURPRISED.after(surprises).total_seconds())
                continue
            surprises = 0
            if turned is Turn.BLOCKED:
                await pause(stop, jittered(blocked))
                blocked = min(blocked * 2, self.poll_interval.total_seconds())
            else:
                blocked = BLOCKED_SECONDS

    async def _take_turn(self, outage: Outage, stop: asyncio.Event) -> Turn | None:
        """One turn, and the sleep after one that found nothing."""
        turned = await outage.ride_out(lambda: self._pipeline.turn(self.clock(), stop), stop)
        if turned is Turn.MOVED:
            await self._wakeup.busy()
        elif turned is Turn.NOTHING:
            await outage.ride_out(lambda: self._wakeup.wait(stop, floor=self._pipeline.floor), stop)
        return turned

    def _surprised(self, error: BaseException) -> None:
        told = first_line(error)
        trace = None if isinstance(error, DBAPIError) else error  # that one's text has the values of parameters
        self._told.say(logging.ERROR, "unexpected error, the relay goes on", told, error=told, exc_info=trace)

    async def drain(self, stop: asyncio.Event, *, patience: timedelta = timedelta(seconds=10)) -> Drained:
        """Publish all that is due, then return. A message that fails is tried once; `stop` ends it early.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than `patience`.
        """
        outage = Outage("relay", patience=patience.total_seconds(), passing=PASSING_SQLSTATES)
        await outage.ride_out(self._get_ready, stop)
        self._say_started()
        done = self._done = Drained()
        as_of = waiting_since = self.clock()
        async with self._pipeline:
            while not stop.is_set():
                self._told.flush()
                turned = await outage.ride_out(lambda: self._pipeline.turn(as_of, stop), stop)
                if turned is Turn.MOVED:
                    waiting_since = self.clock()
                    continue
                done.held, done.later = await outage.ride_out(self._counter(as_of), stop) or (None, 0)
                if not done.held or self.clock() - waiting_since > patience:
                    break
                self._pipeline.sweep()
                await pause(stop, jittered(DRAIN_SECONDS))
        if stop.is_set():  # an outage of its own: that the database counts does not say that the broker is back
            counting = Outage("relay", passing=PASSING_SQLSTATES)
            done.held, done.later = await counting.ride_out(self._counter(as_of), stop) or (None, 0)
        self._told.flush(everything=True)
        await self.publisher.close()
        return done

    def _say_started(self) -> None:
        self._log.info(
            "relay started",
            destination=self.destination,
            batch_size=self.batch_size,
            database=urls.shown(self.engine.url),
            broker=address_of(self.publisher),
        )

    async def _get_ready(self) -> None:
        await schema.check_engine(self.engine)
        if self.keep_published:
            async with self.engine.connect() as connection:
                await partitions.prepare_partitions(connection)

    def _settled(self, settlement: Settlement) -> None:
        self._done.add(settlement)
        report(settlement, self._told)

    def _counter(self, as_of: datetime) -> Callable[[], Awaitable[tuple[int, int]]]:
        ours = {"destination": self.destination}

        async def count() -> tuple[int, int]:
            async with self.engine.connect() as connection:
                held = (await connection.execute(statements.status.count_due(as_of), ours)).scalar_one()
                later = (await connection.execute(statements.status.count_later(as_of), ours)).one()[0]
            return held, later

        return count
