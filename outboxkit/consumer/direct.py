"""Publisher without a broker: the relay runs the handlers of each message in its own process.

It is for tests, and for services whose only consumer is the service itself. Unlike with `memory://`, whose queues end
with the process, no message is lost: it stays in the outbox until all of its handlers have committed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import defaults, inbox, statements
from outboxkit.brokers import CONFIRMED, LONGEST_WAIT, KeyGate, Publisher, Receipt, Verdict, arriving
from outboxkit.codec.headers import DeliveryHeaders, read_delivery_headers
from outboxkit.consumer.attempts import UNUSABLE, blame_database
from outboxkit.consumer.decisions import decide
from outboxkit.consumer.threads import Threads
from outboxkit.consumer.transactions import CONFLICTS, LOST_CONNECTIONS, conflict_delay, note_conflict
from outboxkit.database.transaction import HandlerSession
from outboxkit.errors import ConfigurationError, Retry
from outboxkit.errors.failures import first_line, forget_locals, printable
from outboxkit.errors.sqlstates import is_disk_full
from outboxkit.inbox import Handler, Outcome, Wiring
from outboxkit.message import Message
from outboxkit.runtime.outage import Clock, is_cancelled, utc_now, what_is_away
from outboxkit.runtime.window import CLOCK_SKEW
from outboxkit.telemetry import tracing

IN_PROCESS = tracing.Endpoint("none")
"""For traces: no messaging system is in between."""
_NO_TIME = Receipt(Verdict.NOT_SENT, "there was no time left for it")


class DirectPublisher(Publisher):
    """A publisher that runs handlers in this process, each through `inbox.run_once` in a transaction of its own.

    A message is confirmed once all handlers of its type have committed. If one fails, the others run nevertheless. The
    relay publishes the message again, as its policy says. Handlers that have committed then skip it as a duplicate.

    `Reject`, `DecodeError` and the errors in `never` of a handler's `Retries` are final: the message is not tried
    again. So is every failure of a handler with `max_attempts=1`. The rest of its `Retries` has no effect. A `Retry`
    counts as an attempt. A handler whose transaction collided with another one runs again at once, up to five times
    within its limit, before that counts.

    Messages are handled one after the other. The relay needs an engine that allows for twice the timeout:
    `process.relay_engine(url, publish_timeout=2 * timeout)`.

    Args:
        engine: for the handlers' transactions, one at a time. It must not be the relay's, whose sessions have other
            planner settings.
        handlers: those that `inbox.handlers_in` finds. Several may have one type.
        timeout: the limit for all handlers of a message, of which each has an equal share. `publish` starts no message
            after this time and so returns within twice as long, unless a handler catches its cancellation and goes on.
            A thread that goes on is waited for three seconds longer.
        retention: that of the inbox. An older message is rejected, since it may have been handled.
        skew: the possible difference between clocks, by which a message is too old earlier.
        thread_engine: a synchronous engine for handlers in threads, which are those that are a plain `def`. None: one
            that connects as `engine` does is made, and closed.

    Raises:
        ConfigurationError: the timeout is not more than 0, or nothing provides a handler's parameter.
    """

    address = "this process"
    slow = True
    peer = "database"

    def __init__(
        self,
        engine: AsyncEngine,
        handlers: Sequence[Handler],
        *,
        timeout: timedelta = defaults.PUBLISH_TIMEOUT,
        retention: timedelta = defaults.INBOX_RETENTION,
        skew: timedelta = CLOCK_SKEW,
        clock: Clock = utc_now,
        thread_engine: Engine | None = None,
    ) -> None:
        if timeout <= timedelta(0):
            raise ConfigurationError(f"a direct publisher needs a timeout of more than 0, found {timeout}")
        # A task that outlives its handler cannot use the session any more: it would keep a connection forever.
        self._sessions = async_sessionmaker(
            engine, sync_session_class=HandlerSession, expire_on_commit=False, close_resets_only=False
        )
        self._engine = engine
        self._threads = Threads(engine, size=1, process="relay", own=thread_engine)
        self._by_type: dict[str, list[Handler]] = {}
        for handler in Wiring().prepare(handlers):
            for type_ in handler.message_types:
                self._by_type.setdefault(type_, []).append(handler)
        for type_, same_type in self._by_type.items():
            share = timeout / len(same_type)
            self._by_type[type_] = [replace(each, timeout=min(each.timeout or share, share)) for each in same_type]
        self._lost = "", 0  # the message that lost the database last, and how often
        self._timeout, self._retention, self._skew, self._clock = timeout, retention, skew, clock
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def connect(self) -> None:
        """Make the engine for handlers in threads, if there are any.

        Raises:
            ConfigurationError: none can be made beside the asynchronous one.
        """
        if any(handler.in_thread for handlers in self._by_type.values() for handler in handlers):
            await self._threads.open()

    async def close(self) -> None:
        """End the threads. The engine is the caller's."""
        self._threads.close()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Handle each message. After a failure, later messages of its key are not sent.

        A message is unroutable if its type has no handler. If the database is away, the verdict is unknown and the
        other messages are not sent. If it answers, a message that has lost it five times has failed.
        """
        until = time.monotonic() + self._timeout.total_seconds()
        gate = KeyGate()
        receipts: list[Receipt] = []
        for index, message in enumerate(batch):
            receipt = gate.refuse(index, message)
            if receipt is None:
                receipt = await self._receipt(message) if time.monotonic() < until else _NO_TIME
            receipts.append(receipt)
            if receipt.verdict is Verdict.UNKNOWN:
                until = 0
            if receipt is not CONFIRMED:
                gate.fail(index, message)
        return receipts

    async def _receipt(self, message: Message) -> Receipt:
        """Run all handlers of one message, in their order, and return its receipt."""
        delivery_headers = read_delivery_headers(message.headers)
        handlers = [
            handler
            for handler in self._by_type.get(message.type, ())
            if not delivery_headers.handlers or handler.name in delivery_headers.handlers
        ]
        if isinstance(sent := arriving(message), Receipt):
            return sent
        if (refusal := self._refusal(sent, handlers, delivery_headers)) is not None:
            return refusal
        failures: list[Receipt] = []
        for handler in handlers:
            failure = await self._failure(handler, sent, delivery_headers)
            if failure is not None and failure.verdict is Verdict.UNKNOWN:
                return failure
            failures += [failure] if failure is not None else []
        return _combined(failures)

    def _refusal(
        self, message: Message, handlers: Sequence[Handler], delivery_headers: DeliveryHeaders
    ) -> Receipt | None:
        """The receipt of a message for which no handler may run; None if they may."""
        missing = set(delivery_headers.handlers) - {handler.name for handler in handlers}
        if missing or not handlers:
            names = f" and is named {', '.join(sorted(missing))}" if missing else ""
            return Receipt(Verdict.UNROUTABLE, printable(f"no handler here takes {message.type!r}{names}"))
        accepted_at = delivery_headers.accepted_at
        if inbox.is_stale(
            message, now=self._clock(), retention=self._retention, skew=self._skew, accepted_at=accepted_at
        ):
            days = self._retention / timedelta(days=1)
            reason = (
                f"it is older than the inbox is sure to remember ({days:g} days), so it may have been handled before. "
                "A longer OUTBOXKIT_INBOX_RETENTION, the publisher's `retention`, accepts it, or "
                "`dead replay --accept-stale`"
            )
            return Receipt(Verdict.REJECTED, reason, final=True)
        return None

    async def _failure(self, handler: Handler, message: Message, delivery_headers: DeliveryHeaders) -> Receipt | None:
        """Run one handler. Returns its failure as a receipt; None if it has committed, now or before."""
        with tracing.processing(message, handler.name, replayed=delivery_headers.replayed, at=IN_PROCESS) as span:
            try:  # in a task of its own, because a handler may cancel its current task
                span.ends_as(await asyncio.create_task(self._run(handler, message, delivery_headers.accepted_at)))
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                cause: BaseException = error
            except Exception as error:  # noqa: BLE001 - any error of a handler is a failure of its message
                cause = error
            else:
                return None
            span.fails(cause)
        if is_disk_full(cause) or (what_is_away(cause) == "database" and not await self._is_to_blame(message)):
            return Receipt(Verdict.UNKNOWN, first_line(cause))
        try:
            await blame_database(self._engine, cause)
        except UNUSABLE as error:
            return Receipt(Verdict.UNKNOWN, str(error))
        return self._logged_failure(handler, message, cause)

    async def _is_to_blame(self, message: Message) -> bool:
        """Whether it has lost a database that answers again and again: its handler ends it, or needs another one."""
        try:
            async with self._sessions() as session:
                await session.execute(statements.inbox.probe_writable())
        except SQLAlchemyError:
            return False
        lost = self._lost[1] + 1 if self._lost[0] == message.id else 1
        self._lost = message.id, lost
        return lost >= LOST_CONNECTIONS

    async def _run(self, handler: Handler, message: Message, accepted_at: datetime | None) -> Outcome:
        """Run a handler, again at once after a collision, for as long as its timeout lasts."""
        until, collided = time.monotonic() + (handler.timeout or self._timeout).total_seconds(), 0
        while True:
            work = partial(inbox.run_once, message=message, handler=handler, accepted_at=accepted_at)
            try:
                return await self._once(work, in_thread=handler.in_thread)
            except DBAPIError as error:
                collided += 1
                delay = conflict_delay(collided)
                left = until - time.monotonic() - delay
                if not note_conflict(error) or collided > CONFLICTS or left <= 0:
                    raise
            await asyncio.sleep(delay)
            handler = replace(handler, timeout=timedelta(seconds=left))

    async def _once(self, work: Callable[[Session], Outcome], *, in_thread: bool) -> Outcome:
        if in_thread:
            return await self._threads.run(work)
        async with self._sessions() as session, session.begin():
            return await session.run_sync(work)

    def _logged_failure(self, handler: Handler, message: Message, error: BaseException) -> Receipt:
        """Log the error that a handler raised, and return its receipt."""
        decision = decide(error, handler, attempt=1, max_attempts=2)  # the relay counts the attempts
        traceback = {} if decision.traceback is None else {"exception": decision.traceback}
        fields = {"handler": handler.name, "message_id": message.id, "type": message.type}
        self._log.warning("handler failed", error=decision.error, **fields, **traceback)
        forget_locals(error)  # which has the event
        after = decision.after if isinstance(error, Retry) else None
        return Receipt(
            Verdict.REJECTED,
            f"{handler.name}: {decision.error}",
            after=None if after is None else min(after, LONGEST_WAIT),
            final=decision.outcome is Outcome.DEAD,
        )


def _combined(failures: Sequence[Receipt]) -> Receipt:
    """The receipt of a message whose handlers had these failures; a confirm if there are none."""
    if len(failures) < 2:
        return failures[0] if failures else CONFIRMED
    return Receipt(
        Verdict.REJECTED,
        "; ".join(str(failure.reason) for failure in failures),
        after=min((failure.after for failure in failures if failure.after is not None), default=None),
        final=all(failure.final for failure in failures),
    )
