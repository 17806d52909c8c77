"""The dispatcher of one connection's deliveries: each starts when there is room and its order allows it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from outboxkit.brokers import Delivery, Subscriber
from outboxkit.consumer.batch import BatchRunner
from outboxkit.consumer.handle import STUCK_SECONDS, HandlerRunner
from outboxkit.consumer.key_queues import KeyQueues
from outboxkit.consumer.payload_memory import ROOM, SMALL, PayloadMemory
from outboxkit.consumer.reports import Reports
from outboxkit.consumer.routing import Arrival, Mode
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.errors.failures import first_line, forget_locals
from outboxkit.message import Message
from outboxkit.runtime.outage import is_cancelled, sleep_unless_stopped
from outboxkit.runtime.pauses.watch import StopOrPause

LINGER_SECONDS = 0.02
"""The time for which the first message of a batch waits for others."""
EMPTY_SECONDS = 0.02
"""The delay before a drain reads an empty queue again while deliveries could still come back."""


class Dispatcher:
    """Dispatches the deliveries of one connection, from its first to its last.

    Args:
        concurrency: the number of transactions that run at once.
        batch: the maximum number of deliveries in one transaction.
        drain: whether to end when the queue is empty and nothing is in flight.
        on_loss: called at once when the connection is lost, before started deliveries are finished.

    Attributes:
        requeued: the number of deliveries that a drain requeued, as they waited for a retry or for others that did not
            end. Those to which a stop or a pause came first, before they were tried, are not counted.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        *,
        runner: HandlerRunner,
        concurrency: int,
        batch: int,
        memory: PayloadMemory,
        drain: bool,
        on_loss: Callable[[BaseException], None],
    ) -> None:
        self._subscriber = subscriber
        self._on_loss = on_loss
        self._routing, self._runner, self._batches = runner.routing, runner, BatchRunner(runner)
        self._concurrency = concurrency
        self._batch = batch
        self._memory = memory
        self._drain = drain
        self._queues = KeyQueues()
        self._news = asyncio.Event()
        self._running = _RunningTasks(self._news.set, runner.reports)
        self._stuck: set[Arrival] = set()
        self._isolated = self._in_batch = self._looking = self._expects_duplicates = False
        self._batch_due = 0.0
        self.requeued = 0
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def run(self, stop: asyncio.Event) -> None:
        """Dispatch until `stop` is set, then finish the deliveries that have started and requeue the rest.

        Raises:
            BrokerUnavailable: the connection was lost; started deliveries are finished.
        """
        pump = asyncio.create_task(self._pump(stop))
        stopping = asyncio.create_task(stop.wait())
        for task in (pump, stopping):
            task.add_done_callback(lambda _: self._news.set())
        try:
            while not stop.is_set() and not self._running.errors and not (pump.done() and self._is_over(pump)):
                self._news.clear()
                self._start_ready(stop)
                await self._news.wait()
            is_pause = isinstance(stop, StopOrPause) and stop.is_pause
            await self._finish(pump, is_early=stop.is_set(), is_pause=is_pause)
        finally:
            await self._end(pump, stopping)
        errors = sorted(self._running.errors, key=lambda error: isinstance(error, BrokerUnavailable))
        self._running.errors.clear()
        try:
            if errors:
                raise errors[0]
        finally:  # its traceback has this call: each would keep the other, and the deliveries
            errors.clear()
            del pump, stopping

    def hold(self, keys: frozenset[str]) -> None:
        """From now on start no delivery of these keys. Deliveries of other keys start, also of keys held before."""
        self._queues.held = keys
        self._news.set()

    def _is_over(self, pump: asyncio.Task[None]) -> bool:
        """Whether the pump has failed, or a drain found the queue empty: nothing runs, and nothing may start."""
        return pump.exception() is not None or self._is_idle()

    async def _pump(self, stop: asyncio.Event) -> None:
        """Receive deliveries; in a drain until there are no more."""
        if not self._drain:
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
                self._add(self._routing.arrival(delivery))

    async def _find_end(self, stop: asyncio.Event) -> None:
        """Return once nothing is in flight and the queue is empty, and nothing arrived during that check."""
        while not stop.is_set():
            added = self._queues.added
            if not self._is_idle():
                await sleep_unless_stopped(stop, EMPTY_SECONDS)
            elif (delivery := await self._receive(wait=False)) is not None:
                self._add(self._routing.arrival(delivery))
            elif added == self._queues.added and self._is_idle():
                return

    def _is_idle(self) -> bool:
        return not (self._running or self._queues.has_next())

    async def _receive(self, *, wait: bool) -> Delivery | None:
        """The next delivery. An unexpected error of the subscriber counts as a lost connection, or ends a drain."""
        try:
            return await self._subscriber.receive(wait=wait)
        except OutboxkitError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled() or (self._drain and not isinstance(error, asyncio.CancelledError)):
                raise
            raise BrokerUnavailable(f"deliveries cannot be received: {first_line(error)}") from error

    def _add(self, arrival: Arrival) -> None:
        self._queues.add(arrival)
        if arrival.mode is Mode.BATCHED and self._queues.waiting(Mode.BATCHED) == 1:
            loop = asyncio.get_running_loop()
            self._batch_due = loop.time() + LINGER_SECONDS
            self._running.later(LINGER_SECONDS, self._news.set)
        self._news.set()

    def _start_ready(self, stop: asyncio.Event) -> None:
        while self._running.handling < self._concurrency and not self._isolated and not self._looking:
            if isolated := self._queues.first(Mode.ISOLATED):
                if not self._running.handling:  # otherwise it waits for the running ones, and nothing starts meanwhile
                    self._isolated = True
                    self._running.handle(self._handle(self._queues.take(isolated), stop), [isolated])
                return
            single, batched = self._queues.first(Mode.SINGLE), self._queues.first(Mode.BATCHED)
            if batched and self._is_batch_due() and (single is None or batched.number < single.number):
                self._in_batch = True
                arrivals = self._queues.take_batch(self._batch, ROOM)
                self._running.handle(self._handle_batch(arrivals, stop), arrivals)
            elif single and single.done is None and self._expects_duplicates:
                self._looking = True
                self._running.start(self._look_for_duplicates(stop))
            elif single:
                self._running.handle(self._handle(self._queues.take(single), stop), [single])
            else:
                return

    async def _look_for_duplicates(self, stop: asyncio.Event) -> None:
        """Learn by one query which of the deliveries that wait are duplicates."""
        try:
            await self._runner.recall(self._queues.unknown(), stop)
        finally:
            self._looking = False

    def _is_batch_due(self) -> bool:
        if self._in_batch:
            return False
        return self._queues.waiting(Mode.BATCHED) >= self._batch or asyncio.get_running_loop().time() >= self._batch_due

    async def _handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        try:
            if arrival.room <= SMALL:
                await self._runner.handle(arrival, stop)
            else:
                async with self._memory.room(arrival.room, stop) as is_there:
                    await (self._runner.handle(arrival, stop) if is_there else arrival.requeue())
        finally:
            self._isolated = self._isolated and arrival.mode is not Mode.ISOLATED
        self._expects_duplicates = arrival.is_duplicate
        self._settled([arrival], [arrival] if arrival.waits is not None else [])

    async def _handle_batch(self, arrivals: Sequence[Arrival], stop: asyncio.Event) -> None:
        unsettled: Sequence[Arrival] = []
        try:
            async with self._memory.room(sum(arrival.room for arrival in arrivals), stop) as is_there:
                if is_there:
                    unsettled = await self._batches.handle(arrivals, stop)
                else:
                    for arrival in arrivals:
                        await arrival.requeue()
        finally:
            self._in_batch = False
        self._settled(arrivals, unsettled)

    def _settled(self, arrivals: Sequence[Arrival], unsettled: Sequence[Arrival]) -> None:
        """Free the keys of settled deliveries. The others wait for their delays in their key queues, or behind one."""
        for arrival in arrivals:
            if arrival.is_stuck:
                self._requeue_later(arrival)
        if not unsettled:
            self._queues.free(arrivals)
            return
        waiting = set(unsettled)
        self._queues.free([arrival for arrival in arrivals if arrival not in waiting])
        for arrival in unsettled:
            if arrival.waits is not None and arrival.key is not None:
                self._queues.block(arrival.key)
                arrival.mode = Mode.SINGLE if arrival.mode is Mode.BATCHED else arrival.mode
                self._running.later(arrival.waits.total_seconds(), self._unblock, arrival.key)
                arrival.waits = None
        self._queues.put_back(unsettled)

    def _unblock(self, key: str) -> None:
        self._queues.unblock(key)
        self._news.set()

    def _requeue_later(self, arrival: Arrival) -> None:
        """Requeue a stuck delivery after a while: at once, it would come back at once, again and again."""
        self._stuck.add(arrival)
        self._running.later(STUCK_SECONDS, lambda: self._running.start(self._requeue(arrival), [arrival]))

    async def _requeue(self, arrival: Arrival) -> None:
        self._stuck.discard(arrival)
        await arrival.requeue()

    async def _finish(self, pump: asyncio.Task[None], *, is_early: bool, is_pause: bool) -> None:
        """Stop receiving, wait for the deliveries that have started, requeue the rest."""
        if pump.done():
            self._running.note(pump.exception())
        pump.cancel()
        arrivals = self._running.arrivals()
        if arrivals and not self._running.errors:
            end = "pausing when {}" if is_pause else "stopping when {}; a second signal stops at once"
            self._log.info(
                end.format("the running handlers have ended"), messages=len(arrivals), handlers=self._names(arrivals)
            )
        is_lost = bool(self._running.errors)
        for error in self._running.errors:
            self._on_loss(error)
        if is_lost:  # the broker delivers them again; here they would take memory until the started ones have ended
            self._queues.clear()
            self._stuck.clear()
        else:
            try:
                await self._subscriber.stop_receiving()
                await self._requeue_waiting(is_early=is_early)
            except BrokerUnavailable as error:  # started deliveries are finished all the same
                self._running.errors.append(error)
        if is_cancelled():
            raise asyncio.CancelledError  # `asyncio.wait_for` may have swallowed it, before Python 3.12
        await self._running.wait()
        if not is_lost and not self._running.errors:
            await self._requeue_waiting(is_early=is_early)

    async def _requeue_waiting(self, *, is_early: bool) -> None:
        stuck, self._stuck = list(self._stuck), set()
        for arrival in (*self._queues.clear(), *stuck):
            await arrival.requeue()
            self.requeued += self._drain and (arrival.failures > 0 or not is_early)

    async def _end(self, *tasks: asyncio.Task[Any]) -> None:
        for arrivals in await self._running.cancel(*tasks):
            first = arrivals[0].message
            fields = {"messages": len(arrivals), "handlers": self._names(arrivals)}
            id_ = first.id if isinstance(first, Message) else first.message_id
            self._log.warning("gave up waiting, rolled back; it comes again", message_id=id_, **fields)

    def _names(self, arrivals: Sequence[Arrival]) -> list[str]:
        return sorted({name for arrival in arrivals for name in self._routing.names(arrival)})


class _RunningTasks:
    """The tasks that are running, their deliveries, and the errors of those that have ended.

    Args:
        on_end: called when a task has ended.
        reports: counts deliveries that are being handled.
    """

    def __init__(self, on_end: Callable[[], None], reports: Reports) -> None:
        self._on_end, self._reports = on_end, reports
        self._tasks: dict[asyncio.Task[None], Sequence[Arrival]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_ending = False
        self.handling = 0
        self.errors: list[BaseException] = []

    def __len__(self) -> int:
        """The number of tasks."""
        return len(self._tasks)

    def arrivals(self) -> list[Arrival]:
        """The deliveries that tasks have in hand."""
        return [arrival for each in self._tasks.values() for arrival in each]

    def handle(self, work: Coroutine[Any, Any, None], arrivals: Sequence[Arrival]) -> None:
        """Start a task that runs handlers. Its end is counted for the limits of the deliveries."""
        limits = [limit for arrival in arrivals for limit in arrival.limits]

        def ended(_: asyncio.Task[None]) -> None:
            self.handling -= 1
            self._reports.in_flight -= len(arrivals)
            for limit in limits:
                limit.running -= 1

        self.handling += 1
        self._reports.in_flight += len(arrivals)
        self.start(work, arrivals).add_done_callback(ended)

    def start(self, work: Coroutine[Any, Any, None], arrivals: Sequence[Arrival] = ()) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks[task] = arrivals
        task.add_done_callback(self._ended)
        return task

    def later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call after so many seconds, unless `cancel` comes first."""

        def act() -> None:
            self._timers.discard(timer)
            call(*arguments)

        timer = asyncio.get_running_loop().call_later(seconds, act)
        self._timers.add(timer)

    def note(self, error: BaseException | None) -> None:
        """Keep the error with which a task ended, if there is one, without the delivery that it had in hand."""
        if error is not None:
            forget_locals(error)
            self.errors.append(error)

    async def wait(self) -> None:
        """Wait until all tasks have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self, *others: asyncio.Task[Any]) -> list[Sequence[Arrival]]:
        """Cancel timers, all tasks and these others. Returns the deliveries of each task that did not end by itself."""
        self._is_ending = True
        for timer in self._timers:
            timer.cancel()
        tasks = dict(self._tasks)
        for task in (*others, *tasks):
            task.cancel()
        await asyncio.gather(*others, *tasks, return_exceptions=True)
        return [arrivals for task, arrivals in tasks.items() if task.cancelled() and arrivals]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error: BaseException | None
        if task.cancelled():  # by this dispatcher: `HandlerRunner` contains every other cancellation
            error = None if self._is_ending else BrokerUnavailable("a delivery's task was cancelled")
        else:
            error = task.exception()
        self.note(error)
        self._on_end()
