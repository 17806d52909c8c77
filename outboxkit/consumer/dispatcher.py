"""The dispatcher of one connection's deliveries: each starts when there is room and its order allows it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from outboxkit.brokers import Delivery, Subscriber
from outboxkit.consumer.containment import Containment, Incoming
from outboxkit.consumer.handle import Routing
from outboxkit.consumer.key_queues import Arrival, KeyQueues, Mode
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.failures import first_line
from outboxkit.message import Message
from outboxkit.outage import pause

LINGER_SECONDS = 0.02
"""The time for which the first message of a batch waits for others."""
GIVE_BACK_SECONDS = 5.0
"""The delay before a delivery is requeued that can neither be handled nor become a dead letter."""
BATCH_BYTES = 8 * 1024 * 1024
"""The maximum of payload bytes in one transaction; decoded events take several times as much memory."""
EMPTY_SECONDS = 0.02
"""The delay before a drain looks again at an empty queue while deliveries could still come back."""


class Dispatcher:
    """Dispatches the deliveries of one connection, from its first to its last.

    Args:
        concurrency: the number of transactions that run at once.
        batch: the maximum number of deliveries in one transaction.
        wait: whether to go on when the queue is empty.
        on_loss: called at once when the connection is lost, before started deliveries are finished.

    Attributes:
        postponed: the number of deliveries that a drain requeued because they waited in their key queues.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        *,
        routing: Routing,
        containment: Containment,
        concurrency: int,
        batch: int,
        wait: bool,
        on_loss: Callable[[BaseException], None],
    ) -> None:
        self._subscriber = subscriber
        self._on_loss = on_loss
        self._routing = routing
        self._containment = containment
        self._cancellations = containment.cancellations
        self._concurrency = concurrency
        self._batch = batch
        self._wait = wait
        self._queues = KeyQueues()
        self._running: dict[asyncio.Task[None], Sequence[Arrival]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._stuck: set[Arrival] = set()
        self._news = asyncio.Event()
        self._errors: list[BaseException] = []
        self._isolated = self._in_batch = self._ending = False
        self._batch_due = 0.0
        self.postponed = 0
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def run(self, stop: asyncio.Event) -> None:
        """Dispatch until `stop` is set, then finish what has started and requeue the rest.

        Raises:
            BrokerUnavailable: the connection was lost; started deliveries are finished.
        """
        pump = asyncio.create_task(self._pump(stop))
        stopping = asyncio.create_task(stop.wait())
        for task in (pump, stopping):
            task.add_done_callback(lambda _: self._news.set())
        try:
            while not stop.is_set() and not self._errors and not (pump.done() and self._is_over(pump)):
                self._news.clear()
                self._start_ready(stop)
                await self._news.wait()
            await self._finish(pump)
        finally:
            await self._end(pump, stopping)
        for error in sorted(self._errors, key=lambda error: isinstance(error, BrokerUnavailable)):
            raise error

    def _is_over(self, pump: asyncio.Task[None]) -> bool:
        """Whether the pump has failed, or a drain found the queue empty and has started everything."""
        return pump.cancelled() or pump.exception() is not None or self._is_idle()

    async def _pump(self, stop: asyncio.Event) -> None:
        """Receive deliveries; in a drain until there are no more."""
        if self._wait:
            await self._take(stop)
            return
        both = [asyncio.create_task(self._take(stop)), asyncio.create_task(self._find_end(stop))]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _take(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            delivery = await self._receive(wait=True)
            if delivery is not None:
                self._add(self._routing.arrival(Incoming(delivery)))

    async def _find_end(self, stop: asyncio.Event) -> None:
        """Return once nothing is in flight and the queue is empty, and nothing arrived during that check."""
        while not stop.is_set():
            added = self._queues.added
            if not self._is_idle():
                await pause(stop, EMPTY_SECONDS)
            elif (delivery := await self._receive(wait=False)) is not None:
                self._add(self._routing.arrival(Incoming(delivery)))
            elif added == self._queues.added and self._is_idle():
                return

    def _is_idle(self) -> bool:
        return not (self._running or self._may_start())

    async def _receive(self, *, wait: bool) -> Delivery | None:
        """The next delivery. An unexpected error of the subscriber counts as a lost connection, or ends a drain."""
        try:
            return await self._subscriber.receive(wait=wait)
        except OutboxkitError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if self._cancellations.requested() or not (self._wait or isinstance(error, asyncio.CancelledError)):
                raise
            self._cancellations.undo_foreign()
            raise BrokerUnavailable(f"deliveries cannot be received: {first_line(error)}") from error

    def _add(self, arrival: Arrival) -> None:
        self._queues.add(arrival)
        if arrival.mode is Mode.BATCHED and self._queues.waiting(Mode.BATCHED) == 1:
            loop = asyncio.get_running_loop()
            self._batch_due = loop.time() + LINGER_SECONDS
            self._at(LINGER_SECONDS, self._news.set)
        self._news.set()

    def _may_start(self) -> bool:
        return any(self._queues.first(mode) for mode in Mode)

    def _start_ready(self, stop: asyncio.Event) -> None:
        while len(self._running) < self._concurrency and not self._isolated:
            if isolated := self._queues.first(Mode.ISOLATED):
                if not self._running:  # otherwise it waits for the running ones, and nothing starts meanwhile
                    self._isolated = True
                    self._start(self._handle(self._queues.take(isolated), stop), [isolated])
                return
            single, batched = self._queues.first(Mode.SINGLE), self._queues.first(Mode.BATCHED)
            if batched and self._is_batch_due() and (single is None or batched.number < single.number):
                self._in_batch = True
                arrivals = self._queues.take_batch(self._batch, BATCH_BYTES)
                self._start(self._handle_batch(arrivals, stop), arrivals)
            elif single:
                self._start(self._handle(self._queues.take(single), stop), [single])
            else:
                return

    def _is_batch_due(self) -> bool:
        if self._in_batch:
            return False
        full = self._queues.waiting(Mode.BATCHED) >= self._batch
        return full or asyncio.get_running_loop().time() >= self._batch_due

    def _start(self, work: Coroutine[Any, Any, None], arrivals: Sequence[Arrival]) -> None:
        task = asyncio.create_task(work)
        self._running[task] = arrivals
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if task.cancelled():  # by this dispatcher: `Containment` undoes every other cancellation
            error: BaseException | None = None if self._ending else BrokerUnavailable("a delivery's task was cancelled")
        else:
            error = task.exception()
        if error is not None:
            self._errors.append(error)
        self._news.set()

    async def _handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        try:
            await self._containment.handle(arrival, stop)
        finally:
            self._isolated = self._isolated and arrival.mode is not Mode.ISOLATED
        self._settled([arrival], [arrival] if arrival.waits is not None else [])

    async def _handle_batch(self, arrivals: Sequence[Arrival], stop: asyncio.Event) -> None:
        try:
            unsettled = await self._containment.handle_batch(arrivals, stop)
        finally:
            self._in_batch = False
        self._settled(arrivals, unsettled)

    def _settled(self, arrivals: Sequence[Arrival], unsettled: Sequence[Arrival]) -> None:
        """Free the keys of settled deliveries. The others wait for their delays in their key queues, or behind one."""
        for arrival in arrivals:
            if arrival.is_stuck:
                self._requeue_later(arrival)
        waiting = set(unsettled)
        self._queues.free([arrival for arrival in arrivals if arrival not in waiting])
        for arrival in unsettled:
            if arrival.waits is not None and arrival.key is not None:
                self._queues.block(arrival.key)
                arrival.mode = Mode.SINGLE if arrival.mode is Mode.BATCHED else arrival.mode
                self._at(arrival.waits.total_seconds(), self._unblock, arrival.key)
                arrival.waits = None
        self._queues.put_back(unsettled)

    def _unblock(self, key: str) -> None:
        self._queues.unblock(key)
        self._news.set()

    def _requeue_later(self, arrival: Arrival) -> None:
        """Requeue a stuck delivery after a while: at once, it would come back at once, again and again."""
        self._stuck.add(arrival)
        self._at(GIVE_BACK_SECONDS, lambda: self._start(self._requeue(arrival), [arrival]))

    async def _requeue(self, arrival: Arrival) -> None:
        self._stuck.discard(arrival)
        await arrival.delivery.requeue()

    def _at(self, seconds: float, call: Any, *arguments: Any) -> None:
        """Call after so many seconds, unless this dispatcher has ended by then."""

        def act() -> None:
            self._timers.discard(timer)
            call(*arguments)

        timer = asyncio.get_running_loop().call_later(seconds, act)
        self._timers.add(timer)

    async def _finish(self, pump: asyncio.Task[None]) -> None:
        """Stop receiving, wait for what has started, requeue the rest."""
        if pump.cancelled():
            self._errors.append(BrokerUnavailable("the task that receives deliveries was cancelled"))
        elif pump.done() and (error := pump.exception()) is not None:
            self._errors.append(error)
        self._cancellations.cancel(pump)
        if self._running and not self._errors:
            arrivals = [arrival for each in self._running.values() for arrival in each]
            text = "stopping when the running handlers have ended; a second signal stops at once"
            self._log.info(text, messages=len(arrivals), handlers=self._names(arrivals))
        is_lost = bool(self._errors)
        for error in self._errors:
            self._on_loss(error)
        if not is_lost:
            try:
                await self._subscriber.stop_receiving()
                await self._requeue_waiting()
            except BrokerUnavailable as error:  # started deliveries are finished all the same
                self._errors.append(error)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # `asyncio.wait_for` may have swallowed it, before Python 3.12
        if self._running:
            await asyncio.wait(self._running)
        if not is_lost and not self._errors:
            await self._requeue_waiting()

    async def _requeue_waiting(self) -> None:
        stuck, self._stuck = list(self._stuck), set()
        for arrival in (*self._queues.clear(), *stuck):
            await arrival.delivery.requeue()
            self.postponed += not self._wait

    async def _end(self, *tasks: asyncio.Task[Any]) -> None:
        self._ending = True
        for timer in self._timers:
            timer.cancel()
        running = dict(self._running)
        for task in (*tasks, *running):
            self._cancellations.cancel(task)
        await asyncio.gather(*tasks, *running, return_exceptions=True)
        for task, arrivals in running.items():
            if task.cancelled():
                first = arrivals[0].delivery.message
                fields = {"messages": len(arrivals), "handlers": self._names(arrivals)}
                id_ = first.id if isinstance(first, Message) else first.message_id
                self._log.warning("gave up waiting, rolled back; it comes again", message_id=id_, **fields)

    def _names(self, arrivals: Sequence[Arrival]) -> list[str]:
        return sorted({name for arrival in arrivals for name in self._routing.names(arrival)})
