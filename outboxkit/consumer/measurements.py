"""A consumer's measurements: what is recorded of its deliveries, once for a batch, if anybody collects."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.orm import Session

from outboxkit.brokers import Malformed, Subscriber
from outboxkit.consumer.reports import Failed
from outboxkit.inbox import BatchEntryFailed, Handler, Outcome
from outboxkit.message import Message
from outboxkit.runtime import window
from outboxkit.runtime.outage import Clock, Outage
from outboxkit.telemetry import catalogue, metrics

T = TypeVar("T")
Handled = tuple[Message | Malformed, str, Outcome]
"""A message, the name of a handler, and its outcome there."""

SAMPLE = 8
"""The maximum number of messages of a batch whose age is recorded."""
MOST_ERRORS = 50
"""Classes of errors that are told apart."""
SEVERAL = "several"


@dataclass(frozen=True, slots=True, eq=False)
class HandlerRun:
    """One run of handlers in one transaction.

    Attributes:
        handlers: their names; several in a batch.
        message_id: of the message, or of the first one of a batch.
        messages: the number of messages.
        since: when it began, by the monotonic clock.
    """

    handlers: tuple[str, ...]
    message_id: str
    messages: int
    since: float


class HandlerRuns:
    """The runs of a consumer's handlers that have not ended. It may be read from any thread.

    Args:
        handlers: the consumer's.
        monotonic: a monotonic clock in seconds, for tests.
    """

    def __init__(self, handlers: Iterable[Handler], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._names = sorted(handler.name for handler in handlers)
        self._monotonic = monotonic
        self._running: dict[Session, HandlerRun] = {}

    def tracked(
        self,
        work: Callable[[Session], T],
        handlers: Collection[str],
        *,
        message_id: str,
        messages: int,
        on_end: Callable[[float, str | None], None] = lambda *_: None,
    ) -> Callable[[Session], T]:
        """The same work, which counts as running until it ends, in whatever thread.

        Then `on_end` is called with the seconds that it took, and with the class of its error, if it had one.
        """
        names = tuple(sorted(set(handlers)))

        def track(session: Session) -> T:
            run = self._running[session] = HandlerRun(names, message_id, messages, self._monotonic())
            error = None
            try:
                return work(session)
            except (Exception, asyncio.CancelledError) as raised:
                error = _class_of(raised)
                raise
            finally:
                self._running.pop(session, None)
                on_end(self.age(run), error)

        return track

    def ages(self) -> dict[HandlerRun, float]:
        """The runs that have not ended, with the seconds since each began."""
        return {run: self.age(run) for run in self._running.copy().values()}

    def age(self, run: HandlerRun) -> float:
        """The seconds since this run began."""
        return self._monotonic() - run.since

    def longest(self) -> dict[str, float]:
        """For each handler the seconds since its longest run began; 0 if it does not run."""
        longest = dict.fromkeys(self._names, 0.0)
        for run, age in self.ages().items():
            longest |= {name: max(age, longest.get(name, 0.0)) for name in run.handlers}
        return longest


class ConsumerMeasurements:
    """Records the deliveries of one queue.

    Args:
        subscriber: of the queue.
        handlers: whose types are told apart; every other type is `other`.
        queue: its name.

    Attributes:
        in_flight: the number of deliveries that handlers are working on.
        runs: the handlers that run now.
    """

    def __init__(self, subscriber: Subscriber, handlers: Sequence[Handler], *, queue: str) -> None:
        self.in_flight, self.runs = 0, HandlerRuns(handlers)
        self._queue, self._handlers = {"queue": queue}, tuple(handlers)
        self._delays: Sequence[timedelta] = subscriber.delays
        self._types = metrics.BoundedNames((type_ for each in handlers for type_ in each.message_types), most=0)
        self._errors = metrics.BoundedNames(most=MOST_ERRORS)
        self._process = {
            catalogue.SYSTEM: subscriber.system,
            catalogue.PLACE: queue,
            catalogue.OPERATION: "process",
        }

    def gauges(self, *outages: Outage) -> dict[catalogue.Metric, metrics.Read]:
        """The gauges of a consumer that runs. In any of these outages it may miss a server."""
        return {
            catalogue.CONSUMER_CONNECTED: lambda: [
                (int(not any(outage.is_away(server) for outage in outages)), self._queue | {"server": server})
                for server in ("broker", "database")
            ],
            catalogue.IN_FLIGHT: lambda: [(self.in_flight, self._queue)],
            catalogue.LONGEST_RUN: lambda: [
                (age, self._queue | {"handler": name}) for name, age in self.runs.longest().items()
            ],
        }

    def begin(self) -> None:
        """Have the counters of this consumer begin at 0. Every type that it has no handler for is `other`."""
        metrics.begin_at_zero(catalogue.CONSUMED, self._process)
        metrics.begin_at_zero(catalogue.RETRIES, *(self._queue | {"step": _step(delay)} for delay in self._delays))
        for metric in (catalogue.RECONNECTS, catalogue.ISOLATED):
            metrics.begin_at_zero(metric, self._queue)
        pairs = {(each.name, type_) for each in self._handlers for type_ in each.message_types}
        for name, type_ in sorted(pairs | {("", catalogue.OTHER)} | {("", type_) for _, type_ in pairs}):
            outcomes = Outcome if name else (Outcome.RETRIED, Outcome.DEAD, Outcome.STALE)
            for outcome in outcomes:
                self._count(type_, name, outcome, 0)

    def started(self, deliveries: int) -> None:
        """Record deliveries that are about to be handled together."""
        self.in_flight += deliveries
        metrics.measure(catalogue.CONSUMED, deliveries, self._process)

    def ended(self, deliveries: int) -> None:
        """Note that these are in flight no more."""
        self.in_flight -= deliveries

    def isolated(self) -> None:
        """Record a delivery that is handled alone, because it has come back."""
        metrics.measure(catalogue.ISOLATED, 1, self._queue)

    def lost(self) -> None:
        """Record a lost connection."""
        metrics.measure(catalogue.RECONNECTS, 1, self._queue)

    def timed(
        self, work: Callable[[Session], T], handlers: Collection[str], *, message_id: str, messages: int = 1
    ) -> Callable[[Session], T]:
        """The same work, whose duration is recorded each time that it runs, in whatever thread."""
        if not metrics.is_on():
            return self.runs.tracked(work, handlers, message_id=message_id, messages=messages)
        names = set(handlers)
        attributes = self._process | {"handler": names.pop() if len(names) == 1 else SEVERAL}

        def measure(seconds: float, error: str | None) -> None:
            labels = attributes if error is None else attributes | {catalogue.ERROR: self._errors(error)}
            metrics.measure(catalogue.PROCESS_DURATION, seconds, labels)

        return self.runs.tracked(work, handlers, message_id=message_id, messages=messages, on_end=measure)

    def handled(self, handled: Sequence[Handled], *, now: Clock, batch: int = 0) -> None:
        """Record outcomes that were committed together; `batch` is the number of deliveries if they shared a batch."""
        if not metrics.is_on():
            return
        counts = Counter((message.type or "", name, outcome) for message, name, outcome in handled)
        for (type_, name, outcome), count in counts.items():
            self._count(type_, name, outcome, count)
        if batch:
            metrics.measure(catalogue.CONSUMER_BATCH_SIZE, batch, self._queue)
        moment = now()
        for message, _, outcome in handled[:: -(-len(handled) // SAMPLE)]:
            if outcome is Outcome.PROCESSED and isinstance(message, Message):
                since = window.message_time(message.id, message.created_at)
                if since is not None:
                    metrics.measure(catalogue.MESSAGE_AGE, max(0.0, (moment - since).total_seconds()), self._queue)

    def failed(self, message: Message | Malformed, failed: Failed) -> None:
        """Record retries and dead letters of one message, once for each handler."""
        if metrics.is_on():
            for name, decision in failed.items():
                self._count(message.type or "", name or "", decision.outcome, 1)

    def retried(self, delay: timedelta) -> None:
        """Record a delivery that waits for another attempt."""
        metrics.measure(catalogue.RETRIES, 1, self._queue | {"step": _step(delay)})

    def _count(self, type_: str, handler: str, outcome: Outcome, count: int) -> None:
        attributes = {"type": self._types(type_), "handler": handler, "outcome": str(outcome)}
        metrics.measure(catalogue.DELIVERIES, count, self._queue | attributes)


def _step(delay: timedelta) -> str:
    return f"{delay.total_seconds():g}s"


def _class_of(error: BaseException) -> str:
    """The name of the error's class: of a batch the handler's own."""
    return type(error.__cause__ if isinstance(error, BatchEntryFailed) else error).__name__
