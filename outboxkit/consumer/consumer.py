"""The consumer: connects, lets deliveries flow until it is told to stop, and waits while something is away."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import schema, urls
from outboxkit.brokers import Subscriber, address_of
from outboxkit.consumer.batch import BatchRunner
from outboxkit.consumer.containment import Containment
from outboxkit.consumer.decisions import Policy
from outboxkit.consumer.dispatcher import Dispatcher
from outboxkit.consumer.handle import HandlerRunner, Routing
from outboxkit.consumer.records import CrashRecords, DeadLetterWriter
from outboxkit.consumer.registration import Registration
from outboxkit.consumer.reports import OnError, Reports, Watchdog
from outboxkit.consumer.transactions import Cancellations, Transactions
from outboxkit.consumer.upkeep import Upkeep
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.inbox import Handler, Outcome
from outboxkit.outage import PASSING_SQLSTATES, Clock, Outage, pause, what_is_away

ORDERED_AHEAD = 500
"""Deliveries that a consumer in order takes ahead, at least: as many may wait behind keys whose first one failed."""


@dataclass(slots=True)
class Consumed:
    """What `drain` did.

    Attributes:
        outcomes: one for each delivery and handler, counted.
        postponed: messages that wait for a later attempt.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    postponed: int = 0


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How much a consumer does at once.

    Attributes:
        concurrency: transactions that run at the same time.
        batch: deliveries that share a transaction, at most, where their handlers have `batch=True`.
        ordered: whether messages of one key are handled one after the other; the subscriber's queue must have one
            consumer at a time then.
    """

    concurrency: int = 8
    batch: int = 200
    ordered: bool = False

    def prefetch(self, handlers: Sequence[Handler], asked: int) -> int:
        """How many deliveries the broker should push ahead: those asked for, and enough that nothing runs dry.

        While a batch is handled the next one arrives. In order, what stands behind a failed message waits here.
        """
        together = 2 * self.batch if any(handler.batch for handler in handlers) else 0
        return max(asked, self.concurrency, together, ORDERED_AHEAD if self.ordered else 0)


class Consumer:
    """Runs handlers behind the inbox, and acks after the commits.

    Args:
        engine: for the handlers' sessions; its pool should hold one connection more than `pace.concurrency`.
        subscriber: the queue.
        handlers: what to run; several may handle one type.
        queue: the queue's name, for dead letters and the log.
        pace: how much is done at once.
        policy: when a message is given up.
        patience: how many seconds of an outage are waited out; None is for ever.
        clock: for tests; the database's own where None.

    Attributes:
        outcomes: what became of the deliveries, counted for each handler.

    Raises:
        ConfigurationError: a message could be tried again for longer than the inbox remembers it.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        subscriber: Subscriber,
        handlers: Sequence[Handler],
        *,
        queue: str,
        pace: Concurrency | None = None,
        policy: Policy | None = None,
        patience: timedelta | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._subscriber = subscriber
        self._pace = pace or Concurrency()
        seconds = patience.total_seconds() if patience else None
        self._outage = outage = Outage("consumer", patience=seconds, passing=PASSING_SQLSTATES)
        self._asking = Outage("consumer", patience=seconds, passing=PASSING_SQLSTATES)
        self._upkeep = upkeep = Upkeep(engine, clock=clock)
        self._registration = Registration(engine, handlers, queue=queue)
        self._watchdog = Watchdog(handlers)
        self.outcomes: Counter[Outcome] = Counter()
        policy = policy or Policy()
        policy.check(handlers)
        self._routing = routing = Routing(handlers, policy=policy, ordered=self._pace.ordered, saw=upkeep.saw)
        self._reports = reports = Reports(queue=queue)
        cancellations = Cancellations()
        transactions = Transactions(engine, outage, cancellations)
        self._handling = HandlerRunner(
            routing=routing,
            transactions=transactions,
            suspicion=CrashRecords(engine, queue=queue, outage=outage),
            burial=DeadLetterWriter(engine, queue=queue, outage=outage, outcomes=self.outcomes, reports=reports),
            reports=reports,
            policy=policy,
            now=upkeep.now,
            outcomes=self.outcomes,
        )
        batches = BatchRunner(
            routing=routing,
            transactions=transactions,
            handling=self._handling,
            now=upkeep.now,
            outcomes=self.outcomes,
        )
        self._net = Containment(handling=self._handling, batches=batches, cancellations=cancellations, reports=reports)
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    @property
    def on_error(self) -> OnError | None:
        """Called with a `Failure` for each failure of a handler, in the event loop: to tell an error reporter."""
        return self._reports.on_error

    @on_error.setter
    def on_error(self, hook: OnError | None) -> None:
        self._reports.hook(hook)

    async def run(self, stop: asyncio.Event) -> None:
        """Handle deliveries until `stop` is set; what is in flight is finished first. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: the broker has another kind of queue of that name.
        """
        await self._work(stop, wait=True)
        await self._subscriber.close()
        self._say_stopped()

    async def drain(self, stop: asyncio.Event) -> Consumed:
        """Handle deliveries until the queue is empty and nothing is in flight, then return.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than the consumer's patience.
        """
        in_lanes = await self._work(stop, wait=False)
        postponed = await self._outage.ride_out(self._count_postponed, stop)
        await self._subscriber.close()
        return Consumed(self.outcomes, (postponed or 0) + in_lanes)

    async def _work(self, stop: asyncio.Event, *, wait: bool) -> int:
        """Let deliveries flow; where the broker goes away, again, ever slower while nothing is handled.

        Returns how many a drain gave back, because they wait in their lanes.
        """
        await self._outage.ride_out(lambda: schema.check_engine(self._engine), stop)
        await self._outage.ride_out(self._registration.begin, stop)
        runs = (self._upkeep.run(), self._registration.run(), self._watchdog.run())
        beside = [asyncio.create_task(each) for each in runs]
        try:
            return await self._reconnecting(stop, wait=wait)
        except asyncio.CancelledError:
            self._say_stopped()
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _reconnecting(self, stop: asyncio.Event, *, wait: bool) -> int:
        losses = 0
        while not stop.is_set():
            # The machine may have slept since. That the database answers does not say that the broker is back.
            await self._asking.ride_out(self._upkeep.once, stop)
            await self._outage.ride_out(self._subscriber.connect, stop)
            if stop.is_set():
                break
            self._log.info(
                "consumer connected",
                concurrency=self._pace.concurrency,
                database=urls.shown(self._engine.url),
                broker=address_of(self._subscriber),
            )
            handled = self.outcomes.total()
            flow = Dispatcher(
                self._subscriber,
                routing=self._routing,
                net=self._net,
                concurrency=self._pace.concurrency,
                batch=self._pace.batch,
                wait=wait,
                on_loss=self._outage.begins,
            )
            try:
                await flow.run(stop)
            except Exception as error:  # noqa: BLE001 - looked at there
                self._check_lost(error, wait=wait)
                losses = losses + 1 if self.outcomes.total() == handled else 0
                await self._subscriber.close()  # what is not settled comes again, whatever has happened
                await pause(stop, min(0.1 * 2 ** min(losses, 9), 5))
            else:
                return flow.postponed
        return 0

    def _check_lost(self, error: Exception, *, wait: bool) -> None:
        """Go on after a lost connection, and after what nobody expected unless this is a drain.

        Raises:
            Exception: the error itself, if it is neither.
        """
        if isinstance(error, BrokerUnavailable):
            return
        if not wait or isinstance(error, OutboxkitError) or what_is_away(error, passing=PASSING_SQLSTATES):
            raise error
        self._reports.unexpected("the flow of deliveries failed, it begins anew", error)

    def _say_stopped(self) -> None:
        self._log.info("consumer stopped", **{str(name): count for name, count in self.outcomes.items()})

    async def _count_postponed(self) -> int:
        await self._subscriber.connect()
        return await self._subscriber.postponed()
