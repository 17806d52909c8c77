"""The tasks of a dispatcher, and the deliveries that each of them has in hand."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from outboxkit.consumer.key_queues import Arrival
from outboxkit.consumer.measurements import ConsumerMeasurements
from outboxkit.consumer.transactions import Cancellations
from outboxkit.errors import BrokerUnavailable


class Running:
    """The tasks that are running, their deliveries, and the errors of those that have ended.

    Args:
        cancellations: tells a task that the consumer has cancelled from every other one.
        on_end: called when a task has ended.
        measurements: records deliveries that are handled.

    Attributes:
        handling: the number of tasks that run handlers.
        errors: the errors of tasks that have ended.
    """

    def __init__(
        self, cancellations: Cancellations, on_end: Callable[[], None], measurements: ConsumerMeasurements
    ) -> None:
        self._cancellations, self._on_end, self._measurements = cancellations, on_end, measurements
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
            self._measurements.ended(len(arrivals))
            for limit in limits:
                limit.end()

        self.handling += 1
        self._measurements.started(len(arrivals))
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
            self._cancellations.cancel(task)
        await asyncio.gather(*others, *tasks, return_exceptions=True)
        return [arrivals for task, arrivals in tasks.items() if task.cancelled() and arrivals]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error: BaseException | None
        if task.cancelled():  # by this dispatcher: `Containment` undoes every other cancellation
            error = None if self._is_ending else BrokerUnavailable("a delivery's task was cancelled")
        else:
            error = task.exception()
        if error is not None:
            self.errors.append(error)
        self._on_end()
