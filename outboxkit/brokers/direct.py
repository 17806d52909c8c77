"""No broker at all: the relay hands each message to its handlers, in its own process.

For tests, and for services whose only consumer is the service itself. Unlike `memory://`, whose queues end with the
process, nothing can get lost: a message stays in the outbox until all of its handlers have committed.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import inbox
from outboxkit.brokers import CONFIRMED, Receipt, Verdict, reserved
from outboxkit.errors import ConfigurationError, DecodeError, Reject, Retry
from outboxkit.failures import first_line, first_line_of, printable, traceback_of
from outboxkit.inbox import Handler
from outboxkit.message import Message
from outboxkit.outage import Clock, utc_now, what_is_away

LONGEST_WAIT = timedelta(hours=1)
"""No `Retry` of a handler holds a message for longer."""
_NO_TIME = Receipt(Verdict.NOT_SENT, "there was no time left for it")


class _Escaped(Exception):
    """A handler was left by its `__cause__`, such as a SystemExit, which would end the relay's process."""


class DirectPublisher:
    """Publishes to handlers in this process: each runs through `inbox.run_once`, in a transaction of its own.

    A message is confirmed once every handler of its type has committed. When one fails, the others run all the same.
    The relay publishes the message again, as its policy says: handlers that have committed see a duplicate then.

    `Reject`, `DecodeError` and what a handler's `Retries` names in `never` are not tried again, and neither is a
    handler of `max_attempts=1`. The rest of its `Retries` has no effect. `Retry` counts as an attempt.

    Messages are handled one after the other. The relay needs an engine that allows for twice the timeout:
    `process.relay_engine(url, publish_timeout=2 * timeout)`.

    Args:
        engine: for the handlers' transactions, one at a time. Not the relay's own, whose sessions plan otherwise.
        handlers: those that `inbox.handlers_in` finds; several may take one type.
        timeout: how long the handlers of one message may run in all: each has an equal share. No message is begun later
            than that after `publish` was called, so that `publish` returns within twice as long.
        retention: how long the inbox remembers; an older message is refused, since it may have been handled.
        skew: how far clocks may be apart: a message is too old so much earlier.
        clock: for tests.

    Raises:
        ConfigurationError: the timeout is not more than 0.
    """

    address = "this process"
    slow = True

    def __init__(
        self,
        engine: AsyncEngine,
        handlers: Sequence[Handler],
        *,
        timeout: timedelta = timedelta(seconds=10),
        retention: timedelta = timedelta(days=14),
        skew: timedelta = timedelta(minutes=5),
        clock: Clock = utc_now,
    ) -> None:
        if timeout <= timedelta(0):
            raise ConfigurationError(f"a direct publisher needs a timeout of more than 0, found {timeout}")
        # A task that a handler has left behind cannot use its session any more: it would take a connection for good.
        self._sessions = async_sessionmaker(engine, expire_on_commit=False, close_resets_only=False)
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            self._by_type.setdefault(handler.message_type, []).append(handler)
        for type_, takers in self._by_type.items():
            share = timeout / len(takers)
            self._by_type[type_] = [replace(each, timeout=min(each.timeout or share, share)) for each in takers]
        self._timeout, self._retention, self._skew, self._clock = timeout, retention, skew, clock
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def connect(self) -> None:
        """It is always connected."""

    async def close(self) -> None:
        """There is nothing to close: the engine is yours."""

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Handle each message. Behind one that failed, those of its key are held.

        A type that no handler takes is unroutable. Where the database is away, the verdict is unknown and the rest is
        held.
        """
        until = time.monotonic() + self._timeout.total_seconds()
        failed: set[str] = set()
        receipts: list[Receipt] = []
        for message in batch:
            if message.key is not None and message.key in failed:
                receipts.append(Receipt(Verdict.NOT_SENT, f"an earlier message of key {message.key!r} has failed"))
                continue
            receipt = await self._receipt(message) if time.monotonic() < until else _NO_TIME
            receipts.append(receipt)
            if receipt.verdict is Verdict.UNKNOWN:
                until = 0
            if receipt is not CONFIRMED and message.key is not None:
                failed.add(message.key)
        return receipts

    async def _receipt(self, message: Message) -> Receipt:
        """What became of one message: all of its handlers run, in their order."""
        marked = reserved.read(message.headers)
        takers = [
            handler
            for handler in self._by_type.get(message.type, ())
            if not marked.handlers or handler.name in marked.handlers
        ]
        if (refusal := self._refusal(message, takers, marked)) is not None:
            return refusal
        sent = replace(message, headers=reserved.without(message.headers))
        failures: list[Receipt] = []
        for handler in takers:
            failure = await self._failure(handler, sent, marked.accepted_at)
            if failure is not None and failure.verdict is Verdict.UNKNOWN:
                return failure
            failures += [failure] if failure is not None else []
        return _together(failures)

    def _refusal(self, message: Message, takers: Sequence[Handler], marked: reserved.DeliveryHeaders) -> Receipt | None:
        """Why no handler may run for it; None if they may."""
        missing = set(marked.handlers) - {handler.name for handler in takers}
        if missing or not takers:
            named = f" and is named {', '.join(sorted(missing))}" if missing else ""
            return Receipt(Verdict.UNROUTABLE, printable(f"no handler here takes {message.type!r}{named}"))
        if inbox.is_stale(
            message, now=self._clock(), retention=self._retention, skew=self._skew, accepted_at=marked.accepted_at
        ):
            days = self._retention / timedelta(days=1)
            reason = (
                f"it is older than the inbox is sure to remember ({days:g} days): nothing proves that it was not "
                "handled. A longer `retention` of the publisher takes it all the same"
            )
            return Receipt(Verdict.REJECTED, reason, final=True)
        return None

    async def _failure(self, handler: Handler, message: Message, accepted_at: datetime | None) -> Receipt | None:
        """Run one handler; None if it has committed, now or before."""
        task = asyncio.current_task()
        try:  # in a task of its own: a handler may cancel the one that it runs in
            await asyncio.create_task(self._run(handler, message, accepted_at))
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling():
                raise
            cause: BaseException = error
        except _Escaped as error:
            cause = error.__cause__ or error
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its message's failure
            cause = error
        else:
            return None
        if what_is_away(cause) == "database":
            return Receipt(Verdict.UNKNOWN, first_line(cause))
        return self._told(handler, message, cause)

    async def _run(self, handler: Handler, message: Message, accepted_at: datetime | None) -> None:
        def contained(session: Session) -> None:
            try:
                inbox.run_once(session, message, handler, accepted_at=accepted_at)
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:  # tasks and greenlets treat some of them in ways of their own
                raise _Escaped from error

        async with self._sessions() as session, session.begin():
            await session.run_sync(contained)

    def _told(self, handler: Handler, message: Message, error: BaseException) -> Receipt:
        """The receipt for what a handler raised, which is logged as well."""
        told = {"handler": handler.name, "message_id": message.id, "type": message.type}
        if isinstance(error, Retry | Reject):
            text = first_line_of(error.reason)
        else:
            text, told["exception"] = first_line(error), traceback_of(error)
        self._log.warning("handler failed", error=text, **told)
        after = error.after if isinstance(error, Retry) else None
        return Receipt(
            Verdict.REJECTED,
            f"{handler.name}: {text}",
            after=None if after is None else min(after, LONGEST_WAIT),
            final=_is_final(handler, error),
        )


def _is_final(handler: Handler, error: BaseException) -> bool:
    """Whether another attempt would not help."""
    rule = handler.retry
    excluded = rule is not None and (rule.max_attempts == 1 or isinstance(error, rule.never))
    return excluded or isinstance(error, Reject | DecodeError)


def _together(failures: Sequence[Receipt]) -> Receipt:
    """One receipt for a message whose handlers failed with these; a confirm if there are none."""
    if len(failures) < 2:
        return failures[0] if failures else CONFIRMED
    return Receipt(
        Verdict.REJECTED,
        "; ".join(str(failure.reason) for failure in failures),
        after=min((failure.after for failure in failures if failure.after is not None), default=None),
        final=all(failure.final for failure in failures),
    )
