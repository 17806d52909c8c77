"""A consumer's measurements: what is recorded of its deliveries, and the log line of a handler that does not end."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog

from outboxkit.brokers import Subscriber
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.consumer.reports import NAME, Failed
from outboxkit.errors.failures import printable
from outboxkit.inbox import BatchEntryFailed, Handler, Outcome
from outboxkit.message import Message
from outboxkit.runtime import window
from outboxkit.runtime.outage import Clock, Outage
from outboxkit.telemetry import catalogue, metrics

Handled = tuple[Message | Malformed, str, Outcome]
"""A message, the name of a handler, and its outcome there."""

SAMPLE = 8
"""The maximum number of messages of a batch whose age is recorded."""
MOST_ERRORS = 50
"""Classes of errors that are told apart."""
SEVERAL = "several"
LONG_SECONDS = 60.0
"""A handler that has run for so long is reported; again after twice the time, and so on."""
EVERY_SECONDS = 10.0
LONG_CURE = (
    "if it waits for a lock, `outboxkit status` names the session that holds it. If it hangs otherwise, restart this "
    "consumer: the message comes again. Give the handler a timeout, such as @inbox_handler(..., timeout=60)"
)


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
    """The runs of a consumer's handlers that have not ended; long ones are logged. Any thread may read it.

    Args:
        handlers: the consumer's.
        queue: the consumer's queue, for the log.
        monotonic: a monotonic clock in seconds, for tests.
    """

    def __init__(
        self, handlers: Iterable[Handler], *, queue: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = sorted(handler.name for handler in handlers)
        self._monotonic = monotonic
        self._running: dict[HandlerRun, float] = {}  # each with the age at which it is reported next
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    def begin(self, handlers: Collection[str], *, message_id: str, messages: int) -> HandlerRun:
        """Note that handlers begin to work on these messages."""
        run = HandlerRun(tuple(sorted(set(handlers))), message_id, messages, self._monotonic())
        self._running[run] = LONG_SECONDS
        return run

    def end(self, run: HandlerRun) -> float:
        """Note that a run has ended, however. Returns the seconds that it took."""
        self._running.pop(run, None)
        return self._monotonic() - run.since

    def longest(self) -> dict[str, float]:
        """For each handler the seconds since its longest run began; 0 if it does not run."""
        longest = dict.fromkeys(self._names, 0.0)
        for run in self._running.copy():
            age = self._monotonic() - run.since
            longest |= {name: max(age, longest.get(name, 0.0)) for name in run.handlers}
        return longest

    async def watch(self) -> None:
        """Report long runs every ten seconds, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self.report()

    def report(self) -> None:
        """Log each run that has not ended after a minute; again after twice the time, and so on."""
        for run, due in self._running.copy().items():
            age = self._monotonic() - run.since
            if age < due or run not in self._running:
                continue
            self._running[run] = 2 * age
            batch = {"messages": run.messages} if run.messages > 1 else {}
            self._log.warning(
                f"handler has not ended for {age:.0f} s",
                handler=", ".join(run.handlers),
                message_id=printable(run.message_id, NAME),
                **batch,
                cure=LONG_CURE,
            )


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
        self.in_flight, self.runs = 0, HandlerRuns(handlers, queue=queue)
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

    @contextmanager
    def timed(self, handlers: Collection[str], *, message_id: str, messages: int = 1) -> Iterator[None]:
        """A block in which handlers work on these messages, in whatever thread; its duration is recorded."""
        run, error = self.runs.begin(handlers, message_id=message_id, messages=messages), None
        try:
            yield
        except (Exception, asyncio.CancelledError) as raised:
            error = raised
            raise
        finally:
            seconds = self.runs.end(run)
            if metrics.is_on():
                labels = self._process | {"handler": run.handlers[0] if len(run.handlers) == 1 else SEVERAL}
                if error is not None:
                    labels |= {catalogue.ERROR: self._errors(_class_of(error))}
                metrics.measure(catalogue.PROCESS_DURATION, seconds, labels)

    def handled(self, handled: Sequence[Handled], *, now: Clock) -> None:
        """Record outcomes that were committed together."""
        if not metrics.is_on():
            return
        counts = Counter((message.type or "", name, outcome) for message, name, outcome in handled)
        for (type_, name, outcome), count in counts.items():
            self._count(type_, name, outcome, count)
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
