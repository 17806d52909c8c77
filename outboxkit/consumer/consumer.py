"""The consumer service: connects, dispatches deliveries until it is stopped, and waits out outages."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Self

import structlog
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import defaults, schema
from outboxkit.brokers import Subscriber
from outboxkit.codec.envelopes import Reader
from outboxkit.consumer.attempts import Records
from outboxkit.consumer.decisions import ConsumerPolicy
from outboxkit.consumer.dispatcher import Dispatcher
from outboxkit.consumer.handle import HandlerRunner
from outboxkit.consumer.inbox_days import InboxDays
from outboxkit.consumer.membership import PlainMember, ShardSource
from outboxkit.consumer.payload_memory import PayloadMemory
from outboxkit.consumer.registration import Registration
from outboxkit.consumer.reports import Consumed, OnError, Reports
from outboxkit.consumer.routing import Routing
from outboxkit.consumer.threads import Threads
from outboxkit.consumer.transactions import Transactions
from outboxkit.consumer.watchdog import Watchdog
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import Handler, Outcome, Wiring
from outboxkit.runtime import urls
from outboxkit.runtime.database_clock import DatabaseClock
from outboxkit.runtime.health import Health
from outboxkit.runtime.lifetime import end_tasks
from outboxkit.runtime.outage import Clock, Outage, check_engine_driver, sleep_unless_stopped, what_is_away
from outboxkit.runtime.pauses import Pause
from outboxkit.runtime.pauses.watch import PauseWatch
from outboxkit.runtime.workers import CONSUMER, Presence, note_sessions
from outboxkit.telemetry import catalogue, metrics, tracing
from outboxkit.telemetry.table_gauges import TableGauges

MEASURED_SECONDS, RECONNECTED_SECONDS = 15.0, 1.0
"""The times between two questions for the lengths of the queues: after an answer, and without one."""
ORDERED_AHEAD = 500
"""The minimum prefetch of an ordered consumer: so many deliveries may wait behind keys whose first one failed."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The limits on a consumer's work at the same time.

    Attributes:
        transactions: the number of transactions that run at once.
        batch: the maximum number of deliveries in one transaction, if their handlers have `batch=True`.
        ordered: whether messages of one key are handled one after the other. The subscriber's queue must have one
            consumer at a time then.
    """

    transactions: int = defaults.CONCURRENCY
    batch: int = defaults.CONSUME_BATCH_SIZE
    ordered: bool = False

    def prefetch(self, handlers: Sequence[Handler]) -> int:
        """The number of deliveries that the broker pushes ahead, enough to keep all slots busy.

        While one batch is handled, the next one arrives. An ordered consumer holds what is behind a failed message.
        """
        two_batches = 2 * self.batch if any(handler.batch for handler in handlers) else 0
        return max(defaults.PREFETCH, self.transactions, two_batches, ORDERED_AHEAD if self.ordered else 0)


class ProcessWide(NamedTuple):
    """The parts of a process that all its consumers share. The other consumers have neither watchdog nor gauges."""

    memory: PayloadMemory
    watchdog: Watchdog | None = None
    tables: TableGauges | None = None

    @classmethod
    def of(cls, engine: AsyncEngine, handlers: Sequence[Handler]) -> Self:
        """Those of a process whose consumers have these handlers."""
        return cls(PayloadMemory(), Watchdog(handlers), TableGauges(engine))


class Consumer:
    """A service that runs handlers behind the inbox, and acks after their commits.

    Args:
        engine: for the handlers' sessions; its pool should hold one connection more than `concurrency.transactions`.
        subscriber: the queue.
        handlers: the handlers to run; several may handle one type.
        queue: the queue's name, for dead letters, pauses and the log.
        shard: the queue that it reads in truth, for the log and metrics, if `queue` is split into shards.
        concurrency: the limits on work at the same time.
        policy: when a message is given up.
        patience: how long an outage is waited out, a broker that takes no copy, and one that is lost again and again
            before a message is handled; None means for ever.
        readers: of foreign envelopes, asked in this order. What none of them knows is read as outboxkit's.
        clock: for tests; None means the database's own clock.

    Attributes:
        outcomes: the outcomes of all deliveries, counted once for each handler.
        handlers: the handlers.

    Raises:
        ConfigurationError: the engine has another driver than psycopg or aiosqlite. Or a message could be tried again
            for longer than the inbox remembers it. Or nothing provides a handler's parameter.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        subscriber: Subscriber,
        handlers: Sequence[Handler],
        *,
        queue: str,
        shard: str | None = None,
        concurrency: Concurrency | None = None,
        policy: ConsumerPolicy | None = None,
        patience: timedelta | None = None,
        readers: Sequence[Reader] = (),
        clock: Clock | None = None,
    ) -> None:
        check_engine_driver(engine, "a consumer")
        handlers = Wiring().prepare(handlers)
        self._engine = engine
        self._subscriber = subscriber
        self._concurrency = concurrency or Concurrency()
        self._patience = seconds = patience.total_seconds() if patience else None
        name = shard or queue
        self._membership: PlainMember | None = None
        if self._concurrency.ordered and shard is None and isinstance(subscriber, ShardSource):
            # A process with shards must not overtake what comes here in order.
            self._membership = PlainMember(engine, queue, subscriber)
        self._outage = outage = Outage(
            "consumer", queue=name, trouble=lambda: subscriber.trouble, patience=seconds, passing=TRANSIENT
        )
        self._database_clock = database_clock = DatabaseClock(engine, process="consumer", clock=clock)
        self._days = InboxDays(engine, database_clock)
        self.handlers = handlers
        policy = policy or ConsumerPolicy()
        policy.check(handlers)
        self._registration = Registration(engine, handlers, queue=queue, retention=policy.retention)
        self._registers = shard in (None, queue)  # one of a queue's shards does it for all: that of its own name
        ordered = self._concurrency.ordered
        self._routing = routing = Routing(
            handlers, policy=policy, ordered=ordered, on_message=self._days.saw, readers=readers
        )
        self._reports = reports = Reports(handlers, subscriber=subscriber, queue=name, now=database_clock.now)
        self.outcomes: Counter[Outcome] = reports.outcomes
        presence = Presence(
            *(engine, CONSUMER, queue, subscriber.address, subscriber.exchange, self._concurrency.transactions),
            taken=reports.runs.count,
            done=lambda: self.handled,
            ahead=lambda: database_clock.ahead,
            queues=lambda: self._lengths,
        )
        self._watch = PauseWatch(engine, CONSUMER, queue, outage, presence)
        self._threads = Threads(engine, size=self._concurrency.transactions, process="consumer")
        self._uses_threads = any(handler.in_thread for handler in handlers)
        transactions = Transactions(engine, outage, self._threads)
        self._runner = HandlerRunner(
            routing=routing,
            transactions=transactions,
            records=Records(engine=engine, queue=queue, outage=outage, reports=reports),
            reports=reports,
            policy=policy,
            now=database_clock.now,
            patience=seconds,
            endpoint=tracing.Endpoint(subscriber.system, name),
        )
        self._held: frozenset[str] = frozenset()
        self._lengths: Mapping[str, int] = {}
        self._dispatcher: Dispatcher | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=name)

    def hold(self, keys: frozenset[str]) -> None:
        """From now on handle no message of these keys, which an ordered consumer keeps, and those of all other keys."""
        self._held = keys
        if self._dispatcher is not None:
            self._dispatcher.hold(keys)

    @property
    def handled(self) -> int:
        """The number of messages that it has handled so far, each counted once for all its handlers."""
        return self._reports.messages

    @property
    def paused(self) -> Pause | None:
        """The pause of its queue, as far as it has been seen."""
        return self._watch.current

    @property
    def engine(self) -> AsyncEngine:
        """The engine of the handlers' sessions."""
        return self._engine

    def share_reached(self, servers: set[str]) -> None:
        """Have consumers of one process share what they have worked with, and so which refusals they wait out."""
        self._outage.share_reached(servers)

    def health(self) -> Health:
        """The state of this consumer while it runs, from any thread."""
        trouble, errors = None if self._watch.is_resting else self._subscriber.trouble, self._outage.errors
        broker = trouble and errors.get("broker", trouble)
        return Health("consumer", servers={"broker": broker, "database": errors.get("database")})

    @property
    def thread_engine(self) -> Engine | None:
        """A synchronous engine for handlers in threads; None: one that connects as `engine` does is made."""
        return self._threads.own

    @thread_engine.setter
    def thread_engine(self, engine: Engine | None) -> None:
        """Set it before the consumer runs. Its pool must have room for `concurrency.transactions` and a few more."""
        self._threads.own = engine

    @property
    def on_error(self) -> OnError | None:
        """Called with a `Failure` for each failure of a handler, in the event loop: to tell an error reporter."""
        return self._reports.on_error

    @on_error.setter
    def on_error(self, hook: OnError | None) -> None:
        """Set the hook."""
        self._reports.hook(hook)

    async def run(self, stop: asyncio.Event, *, shared: ProcessWide | None = None) -> None:
        """Handle deliveries until `stop` is set, then finish those in flight. Outages are waited out.

        Args:
            stop: set it to stop.
            shared: of a process with several consumers; None: this one is alone.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: the broker has another kind of queue under that name, or a pooler in transaction mode
                is in front of the database.
        """
        try:
            await self._work(stop, shared, drain=False)
        finally:
            await self._subscriber.close()
        self._say_stopped()

    async def drain(self, stop: asyncio.Event, *, shared: ProcessWide | None = None) -> Consumed:
        """Handle deliveries until the queue is empty and nothing is in flight, then return. A pause ends it early.

        Args:
            stop: ends it early.
            shared: as for `run`.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: an outage outlasted the consumer's patience.
        """
        try:
            requeued = await self._work(stop, shared, drain=True)
            stopped = stop.is_set()
            waiting = requeued + await self._subscriber.waiting_retries()
        finally:
            await self._subscriber.close()
        away = self._outage.words if stopped else None
        return Consumed(self.outcomes, waiting, self._watch.current, away, stopped)

    async def _work(self, stop: asyncio.Event, shared: ProcessWide | None, *, drain: bool) -> int:
        """Dispatch deliveries; after a lost connection again, with a growing delay while nothing gets handled.

        Returns the number of deliveries that a drain requeued because they waited in their key queues.
        """
        with metrics.observed(self._gauges()):
            return await self._prepared(stop, shared or ProcessWide.of(self._engine, self.handlers), drain=drain)

    def _gauges(self) -> dict[catalogue.Metric, metrics.Read]:
        places, labels = self._concurrency.transactions, self._reports.labels
        own: dict[catalogue.Metric, metrics.Read] = {
            catalogue.PLACES: lambda: [
                (places, labels | {"state": "all"}),
                (self._reports.runs.count(), labels | {"state": "taken"}),
            ],
            catalogue.QUEUE_MESSAGES: lambda: [(length, {"queue": name}) for name, length in self._lengths.items()],
        }
        return self._reports.gauges(self._outage) | self._database_clock.gauges() | own

    async def _prepared(self, stop: asyncio.Event, shared: ProcessWide, *, drain: bool) -> int:
        """Get ready, and dispatch. An outage is waited out at each step."""
        self._reports.starts(database=urls.shown(self._engine.url))
        await self._outage.ride_out(lambda: schema.check_worker(self._engine), stop)
        self._outage.reached("database")
        if self._uses_threads:
            threads = await self._outage.ride_out(self._threads.open, stop)
            if threads is not None:
                note_sessions(threads.kw["bind"], beside=self._engine.sync_engine)
        await self._outage.ride_out(self._watch.poll, stop)
        if shared.tables is not None:
            await self._outage.ride_out(shared.tables.open, stop)
        loops = [self._days.run(), self._reports.runs.watch(), self._measure_queues()]
        if self._registers:
            loops.append(self._registration.run())
        if self._membership is not None:
            loops.append(self._membership.run(self._subscriber.close))
        if shared.watchdog is not None:
            loops.append(shared.watchdog.run())
        background = [asyncio.create_task(run) for run in loops]
        tables = nullcontext() if shared.tables is None else shared.tables.observed()
        try:
            with tables:
                async with self._watch.watching():
                    return await self._reconnecting(stop, shared.memory, drain=drain)
        except asyncio.CancelledError:
            self._say_stopped()
            raise
        finally:
            await end_tasks(background)
            self._threads.close()
            if self._membership is not None:
                await self._membership.leave()

    async def _reconnecting(self, stop: asyncio.Event, memory: PayloadMemory, *, drain: bool) -> int:
        losses, first_lost_at = 0, 0.0
        while not stop.is_set():
            await self._outage.ride_out(self._days.once, stop)  # the machine may have slept since
            if self._membership is not None:
                await self._outage.ride_out(self._membership.join, stop)
            await self._outage.ride_out(self._subscriber.connect, stop, reaches=("broker",))
            if stop.is_set() or (self._watch.current is not None and drain):
                break
            if self._watch.current is not None:
                await self._watch.wait_for_end(stop)
                continue
            await self._outage.ride_out(self._start_receiving, stop, reaches=("broker",))
            if self._registers:
                await self._outage.ride_out(self._registration.begin, stop)  # a start that was refused leaves no trace
            if stop.is_set():
                break
            self._outage.reached("broker")
            self._log.info("consumer connected", concurrency=self._concurrency.transactions)
            handled = self.outcomes.total()
            self._dispatcher = dispatcher = Dispatcher(
                self._subscriber,
                runner=self._runner,
                concurrency=self._concurrency.transactions,
                batch=self._concurrency.batch,
                memory=memory,
                drain=drain,
                on_loss=self._outage.begins,
            )
            dispatcher.hold(self._held)
            try:
                async with self._watch.stop_or_pause(stop) as halt:
                    await dispatcher.run(halt)
            except Exception as error:
                self._check_lost(error, drain=drain)
                losses = losses + 1 if self.outcomes.total() == handled else 0
                first_lost_at = first_lost_at if losses > 1 else time.monotonic()
                if self._patience is not None and time.monotonic() - first_lost_at > self._patience:
                    raise
                await self._subscriber.close()  # the broker delivers again all that was not acked
                await sleep_unless_stopped(stop, min(0.1 * 2 ** min(losses, 9), 5))
            else:
                if not halt.is_pause or (drain and self._watch.current is not None):
                    return dispatcher.requeued
                await self._subscriber.close()  # which gives back what an ordered one has kept
                await self._watch.wait_for_end(stop)
        return 0

    async def _measure_queues(self) -> None:
        """Ask for the lengths of the queues again and again, until cancelled. Without an answer none is known."""
        while True:
            try:
                self._lengths = await self._subscriber.lengths()
            except Exception as error:  # noqa: BLE001 - whatever it is, the consumer goes on, and asks again
                self._lengths = {}
                self._log.debug("the lengths of the queues are not known", error=first_line(error))
            await asyncio.sleep(MEASURED_SECONDS if self._lengths else RECONNECTED_SECONDS)

    async def _start_receiving(self) -> None:
        await self._subscriber.connect()
        await self._subscriber.start_receiving()

    def _check_lost(self, error: Exception, *, drain: bool) -> None:
        """Return if the consumer is to connect again: a lost connection, or outside a drain an unexpected error."""
        if isinstance(error, BrokerUnavailable):
            return
        if drain or isinstance(error, OutboxkitError) or what_is_away(error, passing=TRANSIENT):
            raise error
        self._reports.unexpected("dispatching deliveries failed, connecting again", error)

    def _say_stopped(self) -> None:
        self._log.info("consumer stopped", **{str(name): count for name, count in self.outcomes.items()})
