"""The consumers of several queues in one process, run beside each other."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.consumer.consumer import Consumer, ProcessWide
from outboxkit.consumer.reports import Consumed, OnError
from outboxkit.inbox import Outcome
from outboxkit.runtime import lifetime
from outboxkit.runtime.health import Health

T = TypeVar("T")


class Consumers:
    """The consumers of several queues in one process, used as a `Consumer` is.

    Each has its own connection to the broker and its own concurrency, so that no queue waits for another one. If one
    ends with an error, the others are stopped.

    Args:
        consumers: each of another queue, on one engine.
        shutdown_timeout: the time that the others have to finish what is in flight after an error; then it is rolled
            back and given back. None means for ever.
    """

    def __init__(self, consumers: Sequence[Consumer], *, shutdown_timeout: timedelta | None = None) -> None:
        self._consumers = list(consumers)
        self._grace = shutdown_timeout
        handlers = [handler for each in self._consumers for handler in each.handlers]
        self._shared = ProcessWide.of(self.engine, handlers)

    @property
    def engine(self) -> AsyncEngine:
        """The engine that they share."""
        return self._consumers[0].engine

    def health(self) -> Health:
        """The state of all of them, from any thread: the first that is in trouble decides."""
        states = [each.health() for each in self._consumers]
        return next((state for state in states if any(state.servers.values())), states[0])

    @property
    def outcomes(self) -> Counter[Outcome]:
        """The outcomes of all deliveries of all queues, counted once for each handler."""
        return sum((each.outcomes for each in self._consumers), Counter())

    @property
    def on_error(self) -> OnError | None:
        """Called with a `Failure` for each failure of a handler, whatever its queue."""
        return self._consumers[0].on_error

    @on_error.setter
    def on_error(self, hook: OnError | None) -> None:
        """Set the hook of all queues."""
        for each in self._consumers:
            each.on_error = hook

    async def run(self, stop: asyncio.Event) -> None:
        """Handle deliveries of all queues until `stop` is set, then finish those in flight.

        Raises:
            SchemaError, ConfigurationError: as `Consumer.run`.
        """
        await self._together(Consumer.run, stop)

    async def drain(self, stop: asyncio.Event) -> Consumed:
        """Handle deliveries until each queue has been empty with nothing of it in flight, then return the totals.

        Raises:
            SchemaError, BrokerUnavailable, sqlalchemy.exc.DBAPIError: as `Consumer.drain`.
        """
        drained = await self._together(Consumer.drain, stop)
        paused = next((each.paused for each in drained if each.paused is not None), None)
        away = next((each.away for each in drained if each.away is not None), None)
        stopped = any(each.stopped for each in drained)
        return Consumed(self.outcomes, sum(each.waiting for each in drained), paused, away, stopped)

    async def _together(self, work: Callable[..., Awaitable[T]], stop: asyncio.Event) -> Sequence[T]:
        others = ProcessWide(self._shared.memory)  # the first one watches the event loop and the tables for all of them
        parts = [
            partial(work, each, shared=self._shared if each is self._consumers[0] else others)
            for each in self._consumers
        ]
        return await lifetime.together(parts, stop, grace=self._grace)
