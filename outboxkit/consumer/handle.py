"""One delivery from its arrival to its ack: each handler in a transaction of its own, the inbox row first.

Whatever happens at any step, the delivery is settled, or requeued after a while. The calls, down to the handler:
`HandlerRunner.handle`, `Transactions.run`, `inbox.run_once`.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast

import structlog
from sqlalchemy.orm import Session
from structlog.typing import FilteringBoundLogger

from outboxkit import inbox
from outboxkit.consumer import decisions
from outboxkit.consumer.attempts import NOTED_FROM, UNUSABLE, AttemptRecord, Records
from outboxkit.consumer.decisions import NEWER_VERSION, REQUEUE_FRESH_AFTER, ConsumerPolicy, Decision, decide
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.consumer.routing import Arrival, Mode, Routing
from outboxkit.consumer.transactions import BLAMELESS, Transactions
from outboxkit.errors import BrokerRefused, BrokerUnavailable
from outboxkit.errors.failures import first_line, forget_locals
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import Handler, Outcome
from outboxkit.inbox.run_once import payload_crc, recall
from outboxkit.message import Message
from outboxkit.retry import delay_for
from outboxkit.runtime.outage import Clock, is_cancelled, what_is_away
from outboxkit.telemetry import tracing

T = TypeVar("T")

STUCK_SECONDS = 5.0
"""The delay before a delivery comes again that can neither be handled nor become a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRunner:
    """Handles one delivery after another.

    Attributes:
        patience: the seconds for which it waits until the broker takes a copy; None: as long as it takes.
    """

    routing: Routing
    transactions: Transactions
    records: Records
    reports: Reports
    policy: ConsumerPolicy
    now: Clock
    patience: float | None = None
    endpoint: tracing.Endpoint = tracing.HERE
    _log: FilteringBoundLogger = field(
        init=False, default_factory=lambda: structlog.get_logger("outboxkit").bind(process="consumer")
    )

    async def handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        """Run the handlers; then ack, retry, or write dead letters and ack. The ack always follows the commits.

        An ordered delivery that is retried gets no copy: `records.fail` counts its failure, it stays unsettled, and
        `arrival.waits` is its delay. One that could not even be set aside is left unsettled, too: it is `is_stuck`, or
        waits if it is an ordered one.

        Raises:
            BrokerUnavailable: the connection was lost, or it is not known whether the delivery was settled.
            UnusableTables, UnusableSessions: outboxkit's tables or a pooler are to blame.
            sqlalchemy.exc.DBAPIError: the database was away for longer than the consumer's patience.
        """
        try:
            await self._handle(arrival, stop)
        except (Exception, asyncio.CancelledError) as error:
            if self.is_expected(error):
                raise
            await self._give_up(arrival, error, stop)

    async def recall(self, arrivals: Sequence[Arrival], stop: asyncio.Event) -> None:
        """Note of each delivery which handlers have handled it, with just this payload, by one query for all.

        If the query fails, none is known: each delivery finds out by itself.
        """
        messages = {each: each.message for each in arrivals if isinstance(each.message, Message)}
        names = {name for each in messages for name in self.routing.names(each)}
        known = None
        try:
            known = await self.transactions.run(lambda session: recall(session, names, messages.values()), stop)
        except BLAMELESS:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            self._log.debug("it is not known which deliveries are duplicates", error=first_line(error))
        known = known or set()
        for each in arrivals:
            each.done = frozenset()
        for each, message in messages.items():
            crc = payload_crc(message.payload)
            each.done = frozenset(name for name in names if (name, message.id, crc) in known)

    def is_expected(self, error: BaseException) -> bool:
        """Whether the consumer has to hear of the error: a server is away, tables or a pooler are to blame, or it ends.

        A cancellation that the consumer did not ask for is a failure like any other.
        """
        ends = isinstance(error, (BrokerUnavailable, *UNUSABLE))
        return ends or is_cancelled() or what_is_away(error, passing=TRANSIENT) is not None

    async def _handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        delivery, record, arrival.waits = arrival.delivery, AttemptRecord(), None
        if delivery.redeliveries >= REQUEUE_FRESH_AFTER and arrival.key is None and _may_run(arrival):
            # The copy counts as new, so the record of its earlier starts has to go first.
            is_cleared = await self.records.forget(_id(arrival), stop=stop)
            await (self._copied(arrival.requeue_fresh()) if is_cleared else arrival.requeue())
            return
        buried = frozenset[str | None]()
        if arrival.mode is Mode.ISOLATED:
            started = await self.records.start(_id(arrival), stop)
            known = None if started is None else await self.records.buried(_id(arrival), stop)
            if started is None or known is None:
                await arrival.requeue()
                return
            record, buried = started, known
            # Another process may have counted failures before this one got the message.
            arrival.failures = max(arrival.failures, record.failures)
            arrival.first_failed_at = arrival.first_failed_at or record.first_failed_at
            if decisions.is_killer(record.starts, self.policy):
                await self._finish(arrival, {None: decisions.crash(record.starts - 1)}, record, stop)
                return
        attempt = delivery.delivery_headers.attempt + arrival.failures
        handlers = self.routing.handlers(arrival, self.now(), attempt)
        if isinstance(handlers, Decision):
            names = self.routing.known_names(arrival) or (None,)
            await self._conclude(arrival, dict.fromkeys(names, handlers), record, attempt, stop)
            return
        if not handlers:
            self.reports.ignored(arrival.message)
        if buried:
            handlers = [each for each in handlers if not buried & {each.name, None}]
            arrival.handlers = tuple(each.name for each in handlers) + self.routing.elsewhere(arrival)
        try:
            await self._run_all(arrival, handlers, record, attempt, stop)
        except asyncio.CancelledError:
            # A stop did not wait for it: it comes again, and has not ended the process. Without a stop it may have.
            if record.starts and stop.is_set() and is_cancelled():
                await self.records.call_off(_id(arrival), record, stop)
            raise

    async def _give_up(self, arrival: Arrival, error: BaseException, stop: asyncio.Event) -> None:
        """Make a dead letter of a message around which an unexpected error happened."""
        arrival.waits = None
        if arrival.settled:
            raise BrokerUnavailable(f"a delivery could not be settled: {first_line(error)}") from error
        record = AttemptRecord(starts=int(arrival.mode is Mode.ISOLATED))
        try:
            await self._finish(arrival, {None: decisions.given_up(error)}, record, stop)
        except (Exception, asyncio.CancelledError) as other:
            if self.is_expected(other):
                raise
            if arrival.settled:
                raise BrokerUnavailable(f"a delivery could not be settled: {first_line(other)}") from other
            self.reports.unexpected("a message can be neither handled nor set aside, and is given back", other)
            arrival.is_stuck = arrival.key is None
            arrival.waits = None if arrival.is_stuck else timedelta(seconds=STUCK_SECONDS)

    async def _run_all(
        self, arrival: Arrival, handlers: Sequence[Handler], record: AttemptRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Run each handler in a transaction of its own, and collect the decisions on those that failed."""
        limit, failed, is_processed = self.policy.max_attempts, dict[str | None, Decision](), False
        message, replayed = cast("Message", arrival.message), arrival.delivery.delivery_headers.replayed
        for handler in handlers:
            name = handler.name
            with tracing.processing(message, name, attempt=attempt, replayed=replayed, at=self.endpoint) as span:
                try:
                    outcome: Outcome | None = Outcome.DUPLICATE
                    if not arrival.done or name not in arrival.done:
                        work = partial(self._work, arrival=arrival, handler=handler, attempt=attempt)
                        outcome = await self.transactions.run(work, stop, in_thread=handler.in_thread)
                except BLAMELESS:
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and is_cancelled():
                        raise
                    failed[name] = decide(error, handler, attempt=attempt, max_attempts=limit)
                    span.fails(error, failed[name].outcome)
                    continue
                if outcome is not None:
                    span.ends_as(outcome)
            if outcome is None:
                await arrival.requeue()
                return
            arrival.is_duplicate |= outcome is Outcome.DUPLICATE
            self.reports.handled([(message, name, outcome)])
            is_processed |= outcome is Outcome.PROCESSED
            self._log.debug("delivery", outcome=str(outcome), handler=name, message_id=message.id)
        self.reports.messages += is_processed
        if elsewhere := self.routing.elsewhere(arrival):
            failed[None] = self.routing.no_handler(arrival, elsewhere, attempt)
        try:
            await self._conclude(arrival, failed, record, attempt, stop)
        finally:
            while failed:  # an error and the calls in its traceback keep each other, and with them the event
                forget_locals(failed.popitem()[1].cause)

    def _work(self, session: Session, *, arrival: Arrival, handler: Handler, attempt: int) -> Outcome:
        message, accepted_at = cast("Message", arrival.message), arrival.delivery.delivery_headers.accepted_at
        with self.reports.timed((handler.name,), message_id=message.id):
            return inbox.run_once(session, message, handler, attempt=attempt, accepted_at=accepted_at)

    async def _conclude(
        self, arrival: Arrival, failed: Failed, record: AttemptRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Settle the delivery once its handlers have run: ack it, retry it, or write dead letters."""
        retried = {name: each for name, each in failed.items() if each.outcome is Outcome.RETRIED}
        dead = {name: each for name, each in failed.items() if each.outcome is not Outcome.RETRIED}
        if not retried:
            await self._finish(arrival, dead, record, stop)
            return
        if dead and not await self.records.bury(arrival, dead, stop, attempts=attempt):
            await arrival.requeue()
            return
        # Handlers that gave the message up must not run again; for those that succeeded it is a duplicate.
        names = tuple(name for name in retried if name is not None) if dead or arrival.handlers else ()
        names += self.routing.elsewhere(arrival) if names or dead else ()
        shortest = decisions.shortest_delay(retried.values(), delay_for(self.policy.delays, attempt))
        planned = delay_for(self.policy.delays, attempt, shortest)
        if arrival.key is None:
            # Clear the record first: if the process ends while the copy waits, the message did not cause that.
            if record.starts and not await self.records.forget(_id(arrival), stop=stop):
                await arrival.requeue()
                return
            await self.records.note_retry(arrival, retried, attempt, planned)
            delay = await self._copied(arrival.retry(shortest, handlers=names))
        else:  # its key waits for it, so it cannot go to a retry queue: the database counts its failures
            updated = await self.records.fail(_id(arrival), arrival.failures + 1, stop)
            if updated is None:
                await arrival.requeue()
                return
            await self.records.note_retry(arrival, retried, attempt, planned)
            delay = arrival.waits = planned
            arrival.failures, arrival.first_failed_at = updated.failures, updated.first_failed_at
            arrival.handlers = names or arrival.handlers
        self.reports.failed(_retried_event(retried), arrival.message, retried, attempt=attempt, delay=delay)

    async def _copied(self, copying: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.patience):
                return await copying
        except TimeoutError as error:
            text = f"the broker took no copy of a message within {self.patience} s"
            text = ": ".join([text, *getattr(error.__cause__, "__notes__", ())])
            raise BrokerRefused(text, kind="right") if "ACCESS_REFUSED" in text else BrokerUnavailable(text) from error

    async def _finish(self, arrival: Arrival, failed: Failed, record: AttemptRecord, stop: asyncio.Event) -> None:
        """Write dead letters for failed handlers, if there are any, clear the attempt record, and only then ack."""
        first = arrival.delivery.delivery_headers.attempt
        attempt = first + arrival.failures
        has_record = bool(record.starts) or attempt > min(first, NOTED_FROM)
        done = not failed or await self.records.bury(arrival, failed, stop, attempts=attempt)
        if done and has_record:
            done = await self.records.forget(_id(arrival), stop=stop)
        await (arrival.ack() if done else arrival.requeue())


def _may_run(arrival: Arrival) -> bool:
    """Whether handlers may run for it. Any other delivery is a dead letter at once, however often it came back."""
    return isinstance(arrival.message, Message) and not arrival.delivery.dropped


def _retried_event(retried: Failed) -> str:
    """The event in the log about decisions to try a message again."""
    if set(retried) == {None}:
        return "no handler here, will be retried"
    if {each.reason for each in retried.values()} == {NEWER_VERSION}:
        return "newer version than known here, will be retried"
    return "handler failed, will be retried"


def _id(arrival: Arrival) -> str:
    return arrival.message.id if isinstance(arrival.message, Message) else ""
