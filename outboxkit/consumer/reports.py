"""The reports of a consumer on its deliveries and the runs of its handlers: metrics, the log and the error hook."""

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from outboxkit.brokers import Subscriber
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.consumer.decisions import Decision
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import first_line, path_of, printable, traceback_of
from outboxkit.inbox import BatchEntryFailed, Handler, Outcome
from outboxkit.message import Message
from outboxkit.runtime import window
from outboxkit.runtime.outage import Clock, Outage
from outboxkit.runtime.pauses import Pause
from outboxkit.telemetry import catalogue, metrics

HANDLERS_LOGGER = logging.getLogger("outboxkit.consumer")
"""A standard logger for error reporters and for applications that configure `logging`.

Without such a configuration it prints nothing: outboxkit's own log says the same.
"""
HANDLERS_LOGGER.addHandler(logging.NullHandler())

NAME_CHARACTERS = 300
"""The maximum length of a name in the log."""
LONG_SECONDS = 60.0
"""A handler that has run for so long is reported; again after twice the time, and so on."""
WATCH_SECONDS = 10.0
LONG_CURE = (
    "if it waits for a lock, `outboxkit status` names the session that holds it. If it hangs otherwise, restart this "
    "consumer: the message comes again. Give the handler a timeout, such as @inbox_handler(..., timeout=60)"
)
SAMPLE = 8
"""The maximum number of messages of a batch whose age is recorded."""
MOST_ERRORS, MOST_IGNORED = 50, 100
"""The numbers of error classes and of ignored types that metrics and the log have by name."""
SEVERAL = "several"

Handled = tuple[Message | Malformed, str, Outcome]
"""A message, the name of a handler, and its outcome there."""

Failed = Mapping[str | None, Decision]
"""The decision for each failed handler, by its name; under None the decision on the message itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one handler, for an application's hook.

    Attributes:
        error: the exception that the handler raised.
        handler: its durable name; None if no handler is to blame.
        attempt: the number of the attempt, from 1.
        final: whether the message is a dead letter now; otherwise it comes again.
        traceback: as in the log: bounded, without parameters of SQL.
    """

    error: BaseException
    message: Message | Malformed
    handler: str | None
    attempt: int
    final: bool
    traceback: str


OnError = Callable[[Failure], object]


@dataclass(frozen=True, slots=True, eq=False)
class HandlerRun:
    """One run of handlers in one transaction.

    Attributes:
        message_id: of the message, or of the first one of a batch.
        since: when it began, by the monotonic clock.
    """

    handlers: tuple[str, ...]
    message_id: str
    messages: int
    since: float


class HandlerRuns:
    """The runs of a consumer's handlers that have not ended; long ones are logged. Any thread may read it."""

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

    def count(self) -> int:
        """The number of runs that have not ended."""
        return len(self._running)

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
            await asyncio.sleep(WATCH_SECONDS)
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
                message_id=printable(run.message_id, NAME_CHARACTERS),
                **batch,
                cure=LONG_CURE,
            )


@dataclass(slots=True)
class Consumed:
    """The state of a consumer at the end of a `drain`.

    Attributes:
        outcomes: all of the consumer since it was made, counted once for each delivery and handler.
        waiting: the number of messages that wait for a later attempt.
        paused: the pause that was in effect.
        away: the server that was away when the drain was stopped, with its error.
        stopped: whether the drain was stopped before the queue was empty.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    waiting: int = 0
    paused: Pause | None = None
    away: str | None = None
    stopped: bool = False


class Reports:
    """Reports what happens to the deliveries of one queue. A log or a hook that fails is not the message's failure.

    Args:
        handlers: whose types metrics have by name; every other type is `other`.

    Attributes:
        outcomes: the outcomes of all deliveries, counted once for each handler.
        messages: the number of deliveries that a handler has processed; each counts once for all its handlers.
        in_flight: the number of deliveries that are being handled.
        runs: the handlers that run now.
        on_error: called for each failure of a handler.
    """

    def __init__(self, handlers: Sequence[Handler], *, subscriber: Subscriber, queue: str, now: Clock) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.messages, self.in_flight, self.runs = 0, 0, HandlerRuns(handlers, queue=queue)
        self.on_error: OnError | None = None
        self._ignored = set[str | None]()
        self._handlers, self._subscriber, self.now = tuple(handlers), subscriber, now
        self._queue, self.labels = queue, {"queue": queue}
        self._types = metrics.BoundedNames((type_ for each in handlers for type_ in each.message_types), most=0)
        self._errors = metrics.BoundedNames(most=MOST_ERRORS)
        self._process = {
            catalogue.SYSTEM: subscriber.system,
            catalogue.ADDRESS: queue,
            catalogue.OPERATION: "process",
        }
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    def hook(self, on_error: OnError | None) -> None:
        """Set the hook, which is called for each failure of a handler.

        Raises:
            ConfigurationError: it is not callable, or would have to be awaited.
        """
        if on_error is not None and (not callable(on_error) or inspect.iscoroutinefunction(on_error)):
            raise ConfigurationError(f"on_error is {on_error!r}; a plain function that takes a Failure is accepted")
        self.on_error = on_error

    def starts(self, *, database: str) -> None:
        """Begin the counters at 0, and log the consumer and each of its handlers."""
        # Every type that it has no handler for is `other`.
        pairs = {(each.name, type_) for each in self._handlers for type_ in each.message_types}
        for name, type_ in sorted(pairs | {("", catalogue.OTHER)} | {("", type_) for _, type_ in pairs}):
            outcomes = set(Outcome) - {Outcome.IGNORED} if name else (Outcome.RETRIED, Outcome.DEAD, Outcome.STALE)
            for outcome in outcomes:
                self._count(type_, name, outcome, 0)
        exchange, broker = self._subscriber.exchange, self._subscriber.address
        self._log.info(
            "consumer starting", handlers=len(self._handlers), exchange=exchange, broker=broker, database=database
        )
        for handler in self._handlers:
            fields = {
                "handler": handler.name,
                "type": ", ".join(handler.message_types),
                "function": path_of(handler.function),
                "in_thread": handler.in_thread or None,
                "batch": handler.batch or None,
                "timeout": handler.timeout and f"{handler.timeout.total_seconds():g}s",
                "middleware": ", ".join(path_of(layer.function) for layer in handler.middleware) or None,
            }
            self._log.info("handler loaded", **{name: value for name, value in fields.items() if value is not None})

    def gauges(self, outage: Outage) -> dict[catalogue.Metric, metrics.Read]:
        """The gauges of a consumer that runs, whose servers may be away."""
        return {
            catalogue.CONSUMER_CONNECTED: lambda: [
                (int(not outage.is_away(server)), self.labels | {"server": server}) for server in ("broker", "database")
            ],
            catalogue.IN_FLIGHT: lambda: [(self.in_flight, self.labels)],
            catalogue.LONGEST_RUN: lambda: [
                (age, self.labels | {"handler": name}) for name, age in self.runs.longest().items()
            ],
        }

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

    def handled(self, handled: Sequence[Handled]) -> None:
        """Count and record outcomes that were committed together."""
        for _, _, outcome in handled:
            self.outcomes[outcome] += 1
        if not metrics.is_on():
            return
        counts = Counter((message.type or "", name, outcome) for message, name, outcome in handled)
        for (type_, name, outcome), count in counts.items():
            self._count(type_, name, outcome, count)
        moment = self.now()
        for message, _, outcome in handled[:: -(-len(handled) // SAMPLE)]:
            if outcome is Outcome.PROCESSED and isinstance(message, Message):
                since = window.message_time(message.id, message.created_at)
                if since is not None:
                    metrics.measure(catalogue.MESSAGE_AGE, max(0.0, (moment - since).total_seconds()), self.labels)

    def failed(
        self,
        event: str,
        message: Message | Malformed,
        failed: Failed,
        *,
        attempt: int,
        delay: timedelta | None = None,
    ) -> None:
        """Report the failure of each handler: a warning if the message comes again, after `delay`, or else an error."""
        more = {} if delay is None else {"after": f"{delay.total_seconds():g}s"}
        for handler, decision in failed.items():
            self.outcomes[decision.outcome] += 1
            self._count(message.type or "", handler or "", decision.outcome, 1)
            level = logging.WARNING if decision.outcome is Outcome.RETRIED else logging.ERROR
            fields = {
                "message_id": _name(message.id if isinstance(message, Message) else message.message_id),
                "type": _name(message.type),
                "handler": _name(handler),
                "reason": decision.reason,
                "error": printable(decision.error),
                "attempt": attempt,
                **more,
            }
            if decision.traceback is not None:
                fields["exception"] = decision.traceback
            self._say(level, event, fields, decision.cause)
            if self.on_error is not None and decision.cause is not None:
                self._call(
                    self.on_error,
                    Failure(
                        decision.cause, message, handler, attempt, level == logging.ERROR, decision.traceback or ""
                    ),
                )

    def ignored(self, message: Message | Malformed) -> None:
        """Count a message that no handler takes, and that need not have one; the first one of its type is logged."""
        self.outcomes[Outcome.IGNORED] += 1
        self._count(message.type or "", "", Outcome.IGNORED, 1)
        if message.type not in self._ignored and len(self._ignored) < MOST_IGNORED:
            self._ignored.add(message.type)
            self._log.info("messages of this type are ignored", type=_name(message.type))

    def unexpected(self, event: str, error: BaseException) -> None:
        """Report an error of outboxkit itself, or of a library that it uses."""
        self._say(logging.ERROR, event, {"error": first_line(error), "exception": traceback_of(error)}, error)

    def _call(self, on_error: OnError, failure: Failure) -> None:
        try:
            on_error(failure)
        except Exception as error:  # noqa: BLE001 - the hook is the application's
            fields = {"error": first_line(error), "exception": traceback_of(error), "handler": _name(failure.handler)}
            self._say_here(logging.ERROR, "the on_error hook failed", fields)

    def _say(self, level: int, event: str, fields: Mapping[str, object], error: BaseException | None) -> None:
        """Log an event, and hand it to the standard logger."""
        self._say_here(level, event, fields)
        with suppress(Exception):
            _hand_to_logging(level, event, {**fields, "queue": self._queue}, error)

    def _say_here(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        with suppress(Exception):  # such as a closed standard error
            (self._log.warning if level == logging.WARNING else self._log.error)(event, **fields)

    def _count(self, type_: str, handler: str, outcome: Outcome, count: int) -> None:
        if metrics.is_on():
            attributes = {"type": self._types(type_), "handler": handler, "outcome": str(outcome)}
            metrics.measure(catalogue.DELIVERIES, count, self.labels | attributes)


def _hand_to_logging(level: int, event: str, fields: Mapping[str, object], error: BaseException | None) -> None:
    if not HANDLERS_LOGGER.isEnabledFor(level):
        return
    text = "%s: message %s of type %s, handler %s, attempt %s: %s"
    names = ("message_id", "type", "handler", "attempt", "error")
    arguments = (event, *(fields.get(name) for name in names))
    exception = (type(error), error, error.__traceback__) if error is not None and "exception" in fields else None
    extra = {name: value for name, value in fields.items() if name != "exception"}
    record = HANDLERS_LOGGER.makeRecord(
        HANDLERS_LOGGER.name, level, __file__, 0, text, arguments, exception, func="failed", extra=extra
    )
    if exception is not None:
        record.exc_text = str(fields["exception"])  # formatters print it instead of the raw text of the error
    HANDLERS_LOGGER.handle(record)


def _name(name: str | None) -> str | None:
    return None if name is None else printable(name, NAME_CHARACTERS)


def _class_of(error: BaseException) -> str:
    """The name of the error's class: of a batch the handler's own."""
    return type(error.__cause__ if isinstance(error, BatchEntryFailed) else error).__name__
