"""A consumer's reports: its log, its error hook, and a watchdog for handlers that block the event loop."""

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

import structlog

from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import first_line, path_of, printable, traceback_of
from outboxkit.inbox import Handler, Outcome
from outboxkit.inbox.failure import Decision
from outboxkit.message import Message
from outboxkit.runtime.pauses import Pause
from outboxkit.runtime.threads.pool import frame_of

LOGGER = logging.getLogger("outboxkit.consumer")
"""A standard logger for error reporters and for applications that configure `logging`.

Without such a configuration it prints nothing: outboxkit's own log says the same.
"""
LOGGER.addHandler(logging.NullHandler())

NAME = 300
"""The maximum length of a name in the log."""

Failed = Mapping[str | None, Decision]
"""The decision for each failed handler, by its name; under None the decision on the message itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one handler, for an application's hook.

    Attributes:
        error: the exception that the handler raised.
        message: the message that it was handling.
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


@dataclass(slots=True)
class Consumed:
    """The totals of one `drain`.

    Attributes:
        outcomes: the outcomes, counted once for each delivery and handler.
        postponed: the number of messages that wait for a later attempt.
        paused: the pause that ended the drain, or kept it from beginning.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    postponed: int = 0
    paused: Pause | None = None


class Reports:
    """Logs failures and calls the error hook. It raises nothing: a failing log or hook is not the message's failure."""

    def __init__(self, *, queue: str) -> None:
        self._queue = queue
        self.on_error: OnError | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    def hook(self, on_error: OnError | None) -> None:
        """Set the hook, which is called for each failure of a handler.

        Raises:
            ConfigurationError: it is not callable, or would have to be awaited.
        """
        if on_error is not None and (not callable(on_error) or inspect.iscoroutinefunction(on_error)):
            raise ConfigurationError(f"on_error is {on_error!r}; a plain function that takes a Failure is accepted")
        self.on_error = on_error

    def starts(self, handlers: Sequence[Handler], **more: object) -> None:
        """Log the parts of this consumer: one line for itself, and one for each handler."""
        self._log.info("consumer starting", handlers=len(handlers), **more)
        for handler in handlers:
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

    def failed(self, event: str, message: Message | Malformed, failed: Failed, *, attempt: int, **more: object) -> None:
        """Report each handler's failure: a warning if the message comes again, an error if it is dead."""
        for handler, decision in failed.items():
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
            self._say(level, event, fields)
            with suppress(Exception):
                _hand_to_logging(level, event, fields | {"queue": self._queue}, decision.cause)
            if self.on_error is not None and decision.cause is not None:
                self._call(
                    self.on_error,
                    Failure(
                        decision.cause, message, handler, attempt, level == logging.ERROR, decision.traceback or ""
                    ),
                )

    def unexpected(self, event: str, error: BaseException, **more: object) -> None:
        """Report an error of outboxkit itself, or of a library that it uses."""
        fields = {"error": first_line(error), "exception": traceback_of(error), **more}
        self._say(logging.ERROR, event, fields)
        with suppress(Exception):
            _hand_to_logging(logging.ERROR, event, fields | {"queue": self._queue}, error)

    def _call(self, on_error: OnError, failure: Failure) -> None:
        try:
            result = on_error(failure)
            if inspect.iscoroutine(result):
                result.close()
                self._say(logging.ERROR, "the on_error hook returned a coroutine, which is never awaited", {})
        except Exception as error:  # noqa: BLE001 - the hook is the application's
            fields = {"error": first_line(error), "exception": traceback_of(error), "handler": _name(failure.handler)}
            self._say(logging.ERROR, "the on_error hook failed", fields)

    def _say(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        with suppress(Exception):  # such as a closed standard error
            (self._log.warning if level == logging.WARNING else self._log.error)(event, **fields)


def _hand_to_logging(level: int, event: str, fields: Mapping[str, object], error: BaseException | None) -> None:
    if not LOGGER.isEnabledFor(level):
        return
    text = "%s: message %s of type %s, handler %s, attempt %s: %s"
    names = ("message_id", "type", "handler", "attempt", "error")
    arguments = (event, *(fields.get(name) for name in names))
    exception = (type(error), error, error.__traceback__) if error is not None and "exception" in fields else None
    extra = {name: value for name, value in fields.items() if name != "exception"}
    record = LOGGER.makeRecord(LOGGER.name, level, __file__, 0, text, arguments, exception, func="failed", extra=extra)
    if exception is not None:
        record.exc_text = str(fields["exception"])  # formatters print it instead of the raw text of the error
    LOGGER.handle(record)


def _name(name: str | None) -> str | None:
    return None if name is None else printable(name, NAME)


BLOCKED_SECONDS = 5.0
"""An event loop that was blocked for longer is reported: by then heartbeats and timeouts run late."""
CURE = (
    "nothing else ran meanwhile, and connections may have been lost. Make it a plain def without in_loop, await in it, "
    "or give the work to a thread with asyncio.to_thread"
)


class Watchdog:
    """Measures how late the event loop is. Once it is late, a thread looks what it runs.

    Args:
        handlers: the handlers whose code is recognised.
        clock: a monotonic clock in seconds, for tests.
    """

    def __init__(self, handlers: Sequence[Handler], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = {getattr(inspect.unwrap(each.function), "__code__", None): each.name for each in handlers}
        self._clock, self._limit = clock, BLOCKED_SECONDS
        self._turned = clock()
        self._culprit: str | None = None
        self._over = threading.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def run(self) -> None:
        """Watch the loop that this runs on, until cancelled."""
        self._turned = self._clock()
        threading.Thread(target=self._look, args=(threading.get_ident(),), name="watchdog", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(self._limit / 4)
                self._turns()
        finally:
            self._turns()  # the end may come before this task has its turn
            self._over.set()

    def _turns(self) -> None:
        """Note that the loop goes on; report it if it was blocked for too long."""
        last, self._turned = self._turned, self._clock()
        blocked, culprit = self._turned - last - self._limit / 4, self._culprit
        self._culprit = None
        if blocked >= self._limit:
            by = culprit or "something that could not be seen (was the process stopped?)"
            self._log.warning(f"the event loop was blocked for {blocked:.0f} s by {by}: {CURE}")

    def _look(self, loop_thread: int) -> None:
        """Look what the loop's thread runs while the loop is late: what is seen first is to blame."""
        while not self._over.wait(self._limit / 4):
            if self._clock() - self._turned > self._limit / 2:
                self._culprit = self._culprit or self._running_code(frame_of(loop_thread))

    def _running_code(self, frame: FrameType | None) -> str | None:
        """The running handler, and the line in its module; otherwise the running function, unless the loop is idle."""
        inner = frame
        while frame is not None:
            if name := self._names.get(frame.f_code):
                return f"handler {name!r} (line {frame.f_lineno} of {frame.f_globals.get('__name__')})"
            frame = frame.f_back
        module = None if inner is None else inner.f_globals.get("__name__")
        if inner is None or module == "selectors":
            return None
        return f"code outside the handlers ({module}, line {inner.f_lineno})"
