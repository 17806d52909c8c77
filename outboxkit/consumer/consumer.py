"""The consumer's slots: each takes a delivery, handles it, takes the next, until it is told to stop."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import migrations
from outboxkit.brokers import Delivery, Subscriber
from outboxkit.consumer.decision import Policy
from outboxkit.consumer.handling import Handling
from outboxkit.errors import BrokerUnavailable
from outboxkit.inbox import Handler, Outcome
from outboxkit.outage import Clock, Outage, pause, utc_now


@dataclass(slots=True)
class Consumed:
    """What `drain` did.

    Attributes:
        outcomes: one for each delivery and handler, counted.
        postponed: messages that wait for a later attempt.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    postponed: int = 0


class Consumer:
    """Runs handlers behind the inbox, each in a transaction of its own, and acks after the commits.

    Args:
        engine: for the handlers' sessions; its pool should hold at least `concurrency` connections.
        subscriber: the queue.
        handlers: what to run; several may handle one type.
        queue: the queue's name, for dead letters and the log.
        concurrency: how many deliveries are handled at once.
        policy: when a message is given up.
        patience: how many seconds of an outage are waited out; None is for ever.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        subscriber: Subscriber,
        handlers: Sequence[Handler],
        *,
        queue: str,
        concurrency: int = 8,
        policy: Policy | None = None,
        patience: timedelta | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._engine = engine
        self._subscriber = subscriber
        self._outage = Outage("consumer", patience=patience.total_seconds() if patience else None)
        self._handling = Handling(
            engine,
            handlers,
            queue=queue,
            policy=policy or Policy(),
            outage=self._outage,
            clock=clock,
        )
        self._concurrency = concurrency
        self._in_flight = 0
        self._idle: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """What became of the deliveries so far, counted."""
        return self._handling.outcomes

    async def run(self, stop: asyncio.Event) -> None:
        """Handle deliveries until `stop` is set; what is in flight is finished first. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: the broker has another kind of queue of that name.
        """
        await self._work(stop, wait=True)
        await self._subscriber.close()
        self._log.info("consumer stopped", **{str(name): count for name, count in self.outcomes.items()})

    async def drain(self, stop: asyncio.Event) -> Consumed:
        """Handle deliveries until the queue is empty and nothing is in flight, then return.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than the consumer's patience.
        """
        await self._work(stop, wait=False)
        postponed = await self._outage.ride_out(self._count_postponed, stop)
        await self._subscriber.close()
        return Consumed(self.outcomes, postponed or 0)

    async def _work(self, stop: asyncio.Event, *, wait: bool) -> None:
        """Connect and run the slots; where the broker goes away, do it again, ever slower while nothing is handled."""
        await self._outage.ride_out(lambda: migrations.check_engine(self._engine), stop)
        losses = 0
        while not stop.is_set():
            await self._outage.ride_out(self._subscriber.connect, stop)
            if stop.is_set():
                return
            self._log.info("consumer connected", concurrency=self._concurrency)
            handled = self.outcomes.total()
            try:
                await self._run_slots(stop, wait=wait)
            except BrokerUnavailable as error:
                self._outage.begins(error)
                losses = losses + 1 if self.outcomes.total() == handled else 0
                await pause(stop, min(0.1 * 2**losses, 5))
            else:
                return

    async def _run_slots(self, stop: asyncio.Event, *, wait: bool) -> None:
        slots = [asyncio.create_task(self._slot(stop, wait=wait)) for _ in range(self._concurrency)]
        stopping = asyncio.create_task(self._interrupt_idle_after(stop))
        try:
            await asyncio.wait(slots, return_when=asyncio.FIRST_EXCEPTION)
            self._interrupt_idle()
            await asyncio.wait(slots)
        finally:
            for task in (stopping, *slots):
                task.cancel()
            ended = await asyncio.gather(*slots, return_exceptions=True)
        errors = [result for result in ended if isinstance(result, Exception)]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokerUnavailable)):
            raise error

    async def _slot(self, stop: asyncio.Event, *, wait: bool) -> None:
        while not stop.is_set():
            delivery = await (self._next_pushed() if wait else self._next_present(stop))
            if delivery is None:
                return
            self._in_flight += 1
            try:
                await self._handling.handle(delivery, stop)
            finally:
                self._in_flight -= 1

    async def _next_pushed(self) -> Delivery | None:
        slot = asyncio.current_task()
        assert slot is not None  # noqa: S101 - every slot is a task
        self._idle.add(slot)
        try:
            return await self._subscriber.receive()
        finally:
            self._idle.discard(slot)

    async def _next_present(self, stop: asyncio.Event) -> Delivery | None:
        """The next delivery, or None once the queue is empty and no other slot has one that it might give back."""
        while not stop.is_set():
            busy = self._in_flight
            delivery = await self._subscriber.receive(wait=False)
            if delivery is not None or not busy:
                return delivery
            await pause(stop, 0.02)
        return None

    async def _interrupt_idle_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._interrupt_idle()

    def _interrupt_idle(self) -> None:
        for slot in self._idle:
            slot.cancel()

    async def _count_postponed(self) -> int:
        await self._subscriber.connect()
        return await self._subscriber.postponed()
