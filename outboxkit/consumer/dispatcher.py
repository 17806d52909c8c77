"""The deliveries of one connection: taken as they come, started where there is room and their order allows it."""

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
"""How long the first message of a batch waits for others."""
GIVE_BACK_SECONDS = 5.0
"""After how long a delivery is given back that can be neither handled nor set aside."""
BATCH_BYTES = 8 * 1024 * 1024
"""Payloads that share a transaction, at most: their events take up several times as much."""
EMPTY_SECONDS = 0.02
"""How long a drain waits before it looks again at an empty queue, while something could still come back."""


class Dispatcher:
    """From the first delivery of a connection to the last.

    Args:
        concurrency: how many transactions run at once.
        batch: how many deliveries share one, at most.
        wait: whether to go on where the queue is empty.
        on_loss: hears at once of a connection that was lost, before what has started is finished.

    Attributes:
        postponed: deliveries that a drain gave back, because they wait in their lanes.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        *,
        routing: Routing,
        net: Containment,
        concurrency: int,
        batch: int,
        wait: bool,
        on_loss: Callable[[BaseException], None],
    ) -> None:
        self._subscriber = subscriber
        self._on_loss = on_loss
        self._routing = routing
        self._net = net
        self._cancellations = net.cancellations
        self._concurrency = concurrency
        self._batch = batch
        self._wait = wait
        self._lanes = KeyQueues()
        self._running: dict[asyncio.Task[None], Sequence[Arrival]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._later: set[Arrival] = set()
        self._news = asyncio.Event()
        self._errors: list[BaseException] = []
        self._alone = self._in_batch = self._ending = False
        self._batch_due = 0.0
        self.postponed = 0
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; what has started is finished, the rest is given back.

        Raises:
            BrokerUnavailable: the connection was lost; what has started is finished.
        """
        pump = asyncio.create_task(self._pump(stop))
        stopping = asyncio.create_task(stop.wait())
        for task in (pump, stopping):
            task.add_done_callback(lambda _: self._news.set())
        try:
            while not stop.is_set() and not self._errors and not (pump.done() and self._is_over(pump)):
                self._news.clear()
                self._start_what_may(stop)
                await self._news.wait()
            await self._finish(pump)
        finally:
            await self._end(pump, stopping)
        for error in sorted(self._errors, key=lambda error: isinstance(error, BrokerUnavailable)):
            raise error

    def _is_over(self, pump: asyncio.Task[None]) -> bool:
        """The pump has failed; or a drain has found the queue empty and has started all that may."""
        return pump.cancelled() or pump.exception() is not None or self._is_idle()

    async def _pump(self, stop: asyncio.Event) -> None:
        """Take deliveries; in a drain until there are no more."""
        if self._wait:
            await self._take(stop)
            return
        both = [asyncio.create_task(self._take(stop)), asyncio.create_task(self._find_the_end(stop))]
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

    async def _find_the_end(self, stop: asyncio.Event) -> None:
        """Return once nothing is in flight and the queue is empty, and nothing has come while that was found out."""
        while not stop.is_set():
            taken = self._lanes.taken_in
            if not self._is_idle():
                await pause(stop, EMPTY_SECONDS)
            elif (delivery := await self._receive(wait=False)) is not None:
                self._add(self._routing.arrival(Incoming(delivery)))
            elif taken == self._lanes.taken_in and self._is_idle():
                return

    def _is_idle(self) -> bool:
        return not (self._running or self._may_start())

    async def _receive(self, *, wait: bool) -> Delivery | None:
        """The next delivery; whatever a client library does instead is a lost connection, or the end of a drain."""
        try:
            return await self._subscriber.receive(wait=wait)
        except OutboxkitError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if self._cancellations.asked() or not (self._wait or isinstance(error, asyncio.CancelledError)):
                raise
            self._cancellations.take_back()
            raise BrokerUnavailable(f"deliveries cannot be received: {first_line(error)}") from error

    def _add(self, arrival: Arrival) -> None:
        self._lanes.add(arrival)
        if arrival.way is Mode.BATCHED and self._lanes.waiting(Mode.BATCHED) == 1:
            loop = asyncio.get_running_loop()
            self._batch_due = loop.time() + LINGER_SECONDS
            self._at(LINGER_SECONDS, self._news.set)
        self._news.set()

    def _may_start(self) -> bool:
        return any(self._lanes.first(way) for way in Mode)

    def _start_what_may(self, stop: asyncio.Event) -> None:
        while len(self._running) < self._concurrency and not self._alone:
            if suspect := self._lanes.first(Mode.ISOLATED):
                if not self._running:  # else it waits until the others have ended, and nothing starts meanwhile
                    self._alone = True
                    self._start(self._handle(self._lanes.take(suspect), stop), [suspect])
                return
            single, together = self._lanes.first(Mode.SINGLE), self._lanes.first(Mode.BATCHED)
            if together and self._is_batch_due() and (single is None or together.number < single.number):
                self._in_batch = True
                arrivals = self._lanes.take_together(self._batch, BATCH_BYTES)
                self._start(self._handle_batch(arrivals, stop), arrivals)
            elif single:
                self._start(self._handle(self._lanes.take(single), stop), [single])
            else:
                return

    def _is_batch_due(self) -> bool:
        if self._in_batch:
            return False
        full = self._lanes.waiting(Mode.BATCHED) >= self._batch
        return full or asyncio.get_running_loop().time() >= self._batch_due

    def _start(self, work: Coroutine[Any, Any, None], arrivals: Sequence[Arrival]) -> None:
        task = asyncio.create_task(work)
        self._running[task] = arrivals
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if task.cancelled():  # by nobody but this flow: the net goes on after every other one
            error: BaseException | None = None if self._ending else BrokerUnavailable("a delivery's task was cancelled")
        else:
            error = task.exception()
        if error is not None:
            self._errors.append(error)
        self._news.set()

    async def _handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        try:
            await self._net.handle(arrival, stop)
        finally:
            self._alone = self._alone and arrival.way is not Mode.ISOLATED
        self._settled([arrival], [arrival] if arrival.waits is not None else [])

    async def _handle_batch(self, arrivals: Sequence[Arrival], stop: asyncio.Event) -> None:
        try:
            left = await self._net.handle_batch(arrivals, stop)
        finally:
            self._in_batch = False
        self._settled(arrivals, left)

    def _settled(self, arrivals: Sequence[Arrival], left: Sequence[Arrival]) -> None:
        """All but those that are left: each of these waits in its lane until its time has come, or behind one."""
        for arrival in arrivals:
            if arrival.is_stuck:
                self._give_back_later(arrival)
        kept = set(left)
        self._lanes.free([arrival for arrival in arrivals if arrival not in kept])
        for arrival in left:
            if arrival.waits is not None and arrival.key is not None:
                self._lanes.block(arrival.key)
                arrival.way = Mode.SINGLE if arrival.way is Mode.BATCHED else arrival.way
                self._at(arrival.waits.total_seconds(), self._unblock, arrival.key)
                arrival.waits = None
        self._lanes.put_back(left)

    def _unblock(self, key: str) -> None:
        self._lanes.unblock(key)
        self._news.set()

    def _give_back_later(self, arrival: Arrival) -> None:
        """Not at once: it would come back at once, again and again."""
        self._later.add(arrival)
        self._at(GIVE_BACK_SECONDS, lambda: self._start(self._release(arrival), [arrival]))

    async def _release(self, arrival: Arrival) -> None:
        self._later.discard(arrival)
        await arrival.delivery.requeue()

    def _at(self, seconds: float, call: Any, *arguments: Any) -> None:
        """Call later, unless this flow has ended by then."""

        def act() -> None:
            self._timers.discard(timer)
            call(*arguments)

        timer = asyncio.get_running_loop().call_later(seconds, act)
        self._timers.add(timer)

    async def _finish(self, pump: asyncio.Task[None]) -> None:
        """Take no more, let end what has started, give back what has not."""
        if pump.cancelled():
            self._errors.append(BrokerUnavailable("the taking of deliveries was cancelled"))
        elif pump.done() and (error := pump.exception()) is not None:
            self._errors.append(error)
        self._cancellations.cancel(pump)
        if self._running and not self._errors:
            arrivals = [arrival for each in self._running.values() for arrival in each]
            told = "stopping when what still runs has ended; a second signal stops at once"
            self._log.info(told, messages=len(arrivals), handlers=self._names(arrivals))
        lost = bool(self._errors)
        for error in self._errors:
            self._on_loss(error)
        if not lost:
            try:
                await self._subscriber.stop_receiving()
                await self._give_back()
            except BrokerUnavailable as error:  # what has started is finished all the same
                self._errors.append(error)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # `asyncio.wait_for` may have swallowed it, before Python 3.12
        if self._running:
            await asyncio.wait(self._running)
        if not lost and not self._errors:
            await self._give_back()

    async def _give_back(self) -> None:
        later, self._later = list(self._later), set()
        for arrival in (*self._lanes.clear(), *later):
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
                told = {"messages": len(arrivals), "handlers": self._names(arrivals)}
                id_ = first.id if isinstance(first, Message) else first.message_id
                self._log.warning("gave up waiting, rolled back; it comes again", message_id=id_, **told)

    def _names(self, arrivals: Sequence[Arrival]) -> list[str]:
        return sorted({name for arrival in arrivals for name in self._routing.names(arrival)})
