"""The consumer service: connects, dispatches deliveries until it is stopped, and waits out outages."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Self

import structlog
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import defaults, schema
from outboxkit.brokers import Subscriber
from outboxkit.codec.envelopes import Reader
from outboxkit.consumer.decisions import ConsumerPolicy
from outboxkit.consumer.dispatcher import Dispatcher
from outboxkit.consumer.handle import HandlerRunner
from outboxkit.consumer.inbox_days import InboxDays
from outboxkit.consumer.measurements import ConsumerMeasurements
from outboxkit.consumer.membership import PlainMember
from outboxkit.consumer.memory import PayloadMemory
from outboxkit.consumer.records import Records
from outboxkit.consumer.registration import Registration
from outboxkit.consumer.reports import Consumed, OnError, Reports, Watchdog
from outboxkit.consumer.routing import Routing
from outboxkit.consumer.transactions import Transactions
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import Handler, Outcome, Wiring
from outboxkit.runtime import urls
from outboxkit.runtime.database_clock import DatabaseClock
from outboxkit.runtime.health import Health
from outboxkit.runtime.outage import Clock, Outage, check_engine_driver, pause, what_is_away
from outboxkit.runtime.pauses import CONSUMER, Pause
from outboxkit.runtime.pauses.holding import note_sessions
from outboxkit.runtime.pauses.watch import PauseWatch
from outboxkit.runtime.threads import Threads
from outboxkit.telemetry import metrics, tracing
from outboxkit.telemetry.tables import TableGauges

AHEAD = defaults.PREFETCH
"""Deliveries that the broker pushes ahead, at least."""
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
        return max(AHEAD, self.transactions, two_batches, ORDERED_AHEAD if self.ordered else 0)


class ProcessWide(NamedTuple):
    """The parts of a process that all its consumers share. The other consumers have neither watchdog nor gauges.

    Attributes:
        memory: the room for payloads that are decoded at the same time.
        watchdog: reports a handler that blocks the event loop.
        tables: the gauges of the tables.
    """

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
        patience: how long an outage is waited out; None means for ever.
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
        seconds = patience.total_seconds() if patience else None
        name = shard or queue
        is_alone = self._is_ordered_alone(subscriber, concurrency, shard)
        self._membership = PlainMember(engine, queue) if is_alone else None
        self._outage = outage = Outage("consumer", queue=name, patience=seconds, passing=TRANSIENT)
        self._clock_outage = Outage("consumer", queue=name, patience=seconds, passing=TRANSIENT)
        self._database_clock = database_clock = DatabaseClock(engine, process="consumer", clock=clock)
        self._days = InboxDays(engine, database_clock)
        self._watch = PauseWatch(engine, CONSUMER, queue, outage)
        self.handlers = handlers
        self.outcomes: Counter[Outcome] = Counter()
        policy = policy or ConsumerPolicy()
        policy.check(handlers)
        self._registration = Registration(engine, handlers, queue=queue, retention=policy.retention)
        self._registers = shard in (None, queue)  # one of a queue's shards does it for all: that of its own name
        ordered = self._concurrency.ordered
        self._routing = routing = Routing(
            handlers, policy=policy, ordered=ordered, on_message=self._days.saw, readers=readers
        )
        self._reports = reports = Reports(queue=name)
        self._threads = Threads(engine, size=self._concurrency.transactions, process="consumer")
        self._uses_threads = any(handler.in_thread for handler in handlers)
        transactions = Transactions(engine, outage, self._threads)
        self._measurements = measurements = ConsumerMeasurements(subscriber, handlers, queue=name)
        shared: dict[str, Any] = {"outcomes": self.outcomes, "reports": reports, "measurements": measurements}
        self._runner = HandlerRunner(
            routing=routing,
            transactions=transactions,
            records=Records(engine=engine, queue=queue, outage=outage, **shared),
            policy=policy,
            now=database_clock.now,
            **shared,
            place=tracing.Place(subscriber.system, name),
        )
        self._held: frozenset[str] = frozenset()
        self._dispatcher: Dispatcher | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=name)

    def hold(self, keys: frozenset[str]) -> None:
        """Handle no message of these keys from now on, and those of all others. An ordered consumer keeps them."""
        self._held = keys
        if self._dispatcher is not None:
            self._dispatcher.hold(keys)

    @staticmethod
    def _is_ordered_alone(subscriber: Subscriber, concurrency: Concurrency | None, shard: str | None) -> bool:
        """Whether messages of an ordered queue come here that a process with shards must not overtake."""
        return concurrency is not None and concurrency.ordered and shard is None and subscriber.system == "rabbitmq"

    @property
    def paused(self) -> Pause | None:
        """The pause of its queue, as far as it has been seen."""
        return self._watch.current

    @property
    def engine(self) -> AsyncEngine:
        """The engine of the handlers' sessions."""
        return self._engine

    def health(self) -> Health:
        """The state of this consumer while it runs, from any thread."""
        trouble = None if self._watch.is_resting else self._subscriber.trouble
        return Health("consumer", servers={"broker": trouble and self._outage.errors.get("broker", trouble)})

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
        await self._work(stop, shared, drain=False)
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
        requeued = await self._work(stop, shared, drain=True)
        postponed = await self._outage.ride_out(self._count_postponed, stop)
        await self._subscriber.close()
        return Consumed(self.outcomes, (postponed or 0) + requeued, self._watch.current)

    async def _work(self, stop: asyncio.Event, shared: ProcessWide | None, *, drain: bool) -> int:
        """Dispatch deliveries; after a lost connection again, with a growing delay while nothing gets handled.

        Returns the number of deliveries that a drain requeued because they waited in their key queues.
        """
        gauges = self._measurements.gauges(self._outage, self._clock_outage) | self._database_clock.gauges()
        with metrics.observed(gauges):
            self._measurements.begin()
            return await self._prepared(stop, shared or ProcessWide.of(self._engine, self.handlers), drain=drain)

    async def _prepared(self, stop: asyncio.Event, shared: ProcessWide, *, drain: bool) -> int:
        """Get ready, and dispatch. An outage is waited out at each step."""
        self._reports.starts(
            self.handlers,
            exchange=self._subscriber.exchange,
            broker=self._subscriber.address,
            database=urls.shown(self._engine.url),
        )
        await self._outage.ride_out(lambda: schema.check_worker(self._engine), stop)
        for outage in (self._outage, self._clock_outage):
            outage.reached("database")
        if self._uses_threads:
            threads = await self._outage.ride_out(self._threads.open, stop)
            if threads is not None:
                note_sessions(threads.kw["bind"], beside=self._engine.sync_engine)
        await self._outage.ride_out(self._watch.look, stop)
        if shared.tables is not None:
            await self._outage.ride_out(shared.tables.open, stop)
        loops = [self._days.run(), self._measurements.runs.watch()]
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
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self._threads.close()
            if self._membership is not None:
                await self._membership.leave()

    async def _reconnecting(self, stop: asyncio.Event, memory: PayloadMemory, *, drain: bool) -> int:
        losses = 0
        while not stop.is_set():
            # The machine may have slept since. An outage of its own: a database that answers ends no broker outage.
            await self._clock_outage.ride_out(self._days.once, stop)
            if self._membership is not None:
                await self._outage.ride_out(self._membership.join, stop)
            await self._outage.ride_out(self._subscriber.connect, stop)
            if stop.is_set() or (self._watch.current is not None and drain):
                break
            if self._watch.current is not None:
                await self._watch.wait_for_end(stop)
                continue
            await self._outage.ride_out(self._start_receiving, stop)
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
                async with self._watch.halting(stop) as halt:
                    await dispatcher.run(halt)
            except Exception as error:  # noqa: BLE001 - `_check_lost` decides
                self._check_lost(error, drain=drain)
                losses = losses + 1 if self.outcomes.total() == handled else 0
                await self._subscriber.close()  # the broker delivers again all that was not acked
                await pause(stop, min(0.1 * 2 ** min(losses, 9), 5))
            else:
                if drain or not halt.is_pause:
                    return dispatcher.postponed
                await self._subscriber.close()  # which gives back what an ordered one has kept
                await self._watch.wait_for_end(stop)
        return 0

    async def _start_receiving(self) -> None:
        await self._subscriber.connect()
        await self._subscriber.start_receiving()

    def _check_lost(self, error: Exception, *, drain: bool) -> None:
        """Return if the consumer is to connect again: after a lost connection, or an unexpected error outside a drain.

        Raises:
            Exception: the error itself, if it is neither.
        """
        if isinstance(error, BrokerUnavailable):
            return
        if drain or isinstance(error, OutboxkitError) or what_is_away(error, passing=TRANSIENT):
            raise error
        self._reports.unexpected("dispatching deliveries failed, connecting again", error)

    def _say_stopped(self) -> None:
        self._log.info("consumer stopped", **{str(name): count for name, count in self.outcomes.items()})

    async def _count_postponed(self) -> int:
        await self._subscriber.connect()
        return await self._subscriber.postponed()
