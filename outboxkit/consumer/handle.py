"""One delivery from its arrival to its ack: each handler in a transaction of its own, the inbox row first.

Whatever happens at any step, the delivery is settled, or requeued after a while.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import structlog
from sqlalchemy.orm import Session
from structlog.typing import FilteringBoundLogger

from outboxkit import inbox
from outboxkit.consumer import decisions
from outboxkit.consumer.decisions import ConsumerPolicy
from outboxkit.consumer.key_queues import Arrival, Mode
from outboxkit.consumer.measurements import ConsumerMeasurements
from outboxkit.consumer.records import CrashRecord, Records
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.consumer.routing import Routing
from outboxkit.consumer.transactions import UNUSABLE, Transactions, is_cancelled
from outboxkit.errors import BrokerUnavailable
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import Handler, Outcome
from outboxkit.inbox.failure import NEWER_VERSION, Decision, decide
from outboxkit.message import Message
from outboxkit.retry import delay_for
from outboxkit.runtime.outage import Clock, what_is_away
from outboxkit.telemetry import tracing
from outboxkit.telemetry.tracing import WorkSpan

REQUEUE_FRESH_AFTER = 10
"""A message that came back so often is requeued as a new one: RabbitMQ 4 drops it at the 20th return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRunner:
    """Handles one delivery after another.

    Attributes:
        routing: decides which handlers run.
        transactions: runs the handlers.
        records: counts starts and failures, and writes dead letters.
        reports: hears of failures.
        policy: when a message is given up.
        now: the database's time.
        outcomes: the outcomes of all deliveries, counted once for each handler.
        measurements: records them.
        place: the place that the deliveries come from, for traces.
    """

    routing: Routing
    transactions: Transactions
    records: Records
    reports: Reports
    policy: ConsumerPolicy
    now: Clock
    outcomes: Counter[Outcome]
    measurements: ConsumerMeasurements
    place: tracing.Place = tracing.HERE
    _log: FilteringBoundLogger = field(
        init=False, default_factory=lambda: structlog.get_logger("outboxkit").bind(process="consumer")
    )

    async def handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        """Run the handlers; then ack, retry, or write dead letters and ack. The ack always follows the commits.

        An ordered delivery that is retried stays unsettled: `arrival.waits` is its delay. One that could not even be
        set aside is left unsettled, too, and `is_stuck`.

        Raises:
            BrokerUnavailable: the connection was lost, or nobody knows whether the delivery was settled.
            UnusableTables, UnusableSessions: outboxkit's tables or a pooler are to blame.
            sqlalchemy.exc.DBAPIError: the database was away for longer than the consumer's patience.
        """
        try:
            await self._handle(arrival, stop)
        except (Exception, asyncio.CancelledError) as error:
            if self.is_expected(error):
                raise
            await self._give_up(arrival, error, stop)

    def is_expected(self, error: BaseException) -> bool:
        """Whether the error ends the flow for a reason. A cancellation that the consumer did not ask for does not."""
        ends = isinstance(error, (BrokerUnavailable, *UNUSABLE))
        return ends or is_cancelled() or what_is_away(error, passing=TRANSIENT) is not None

    async def _handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        delivery, record, arrival.waits = arrival.delivery, CrashRecord(), None
        if delivery.redeliveries >= REQUEUE_FRESH_AFTER and arrival.key is None and _may_run(arrival):
            # The copy counts as new, so the record of its earlier starts has to go first.
            is_cleared = await self.records.forget(_id(arrival), stop)
            await (arrival.requeue_fresh() if is_cleared else arrival.requeue())
            return
        buried = frozenset[str | None]()
        if arrival.mode is Mode.ISOLATED:
            started = await self.records.start(_id(arrival), stop)
            known = None if started is None else await self.records.buried(_id(arrival), stop)
            if started is None or known is None:
                await arrival.requeue()
                return
            record, buried = started, known
            if record.starts > self.policy.max_crashes:
                await self._finish(arrival, {None: decisions.crash(record.starts - 1)}, record, stop)
                return
        attempt = delivery.delivery_headers.attempt + max(arrival.failures, record.failures)
        handlers = self.routing.handlers(arrival, self.now(), attempt)
        if isinstance(handlers, Decision):
            names = self.routing.known_names(arrival) or (None,)
            await self._conclude(arrival, dict.fromkeys(names, handlers), record, attempt, stop)
            return
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
        record = CrashRecord(starts=int(arrival.mode is Mode.ISOLATED), failures=arrival.failures)
        try:
            await self._finish(arrival, {None: decisions.given_up(error)}, record, stop)
        except (Exception, asyncio.CancelledError) as other:
            if self.is_expected(other):
                raise
            if arrival.settled:
                raise BrokerUnavailable(f"a delivery could not be settled: {first_line(other)}") from other
            self.reports.unexpected("a message can be neither handled nor set aside, and is given back", other)
            arrival.is_stuck = True

    async def _run_all(
        self, arrival: Arrival, handlers: Sequence[Handler], record: CrashRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Run each handler in a transaction of its own, and collect the decisions on those that failed."""
        limit, failed = self.policy.max_attempts, dict[str | None, Decision]()
        for handler in handlers:
            with self._span(arrival, handler, attempt) as span:
                try:
                    work = self._work(arrival, handler, attempt)
                    outcome = await self.transactions.run(work, stop, in_thread=handler.in_thread)
                except UNUSABLE:
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and is_cancelled():
                        raise
                    failed[handler.name] = decision = decide(error, handler, attempt=attempt, max_attempts=limit)
                    span.fails(error, decision.outcome)
                    continue
                if outcome is not None:
                    span.ends_as(outcome)
            if outcome is None:
                await arrival.requeue()
                return
            self.outcomes[outcome] += 1
            self.measurements.handled([(arrival.message, handler.name, outcome)], now=self.now)
            self._log.debug("delivery", outcome=str(outcome), handler=handler.name, message_id=_id(arrival))
        if elsewhere := self.routing.elsewhere(arrival):
            failed[None] = self.routing.no_handler(arrival, elsewhere, attempt)
        await self._conclude(arrival, failed, record, attempt, stop)

    def _span(self, arrival: Arrival, handler: Handler, attempt: int) -> WorkSpan:
        message, replayed = cast("Message", arrival.message), arrival.delivery.delivery_headers.replayed
        return tracing.processing(message, handler.name, attempt=attempt, replayed=replayed, at=self.place)

    def _work(self, arrival: Arrival, handler: Handler, attempt: int) -> Callable[[Session], Outcome]:
        message, accepted_at = cast("Message", arrival.message), arrival.delivery.delivery_headers.accepted_at

        def work(session: Session) -> Outcome:
            with self.measurements.timed((handler.name,), message_id=message.id):
                return inbox.run_once(session, message, handler, attempt=attempt, accepted_at=accepted_at)

        return work

    async def _conclude(
        self, arrival: Arrival, failed: Failed, record: CrashRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Settle the delivery once its handlers have run: ack it, retry it, or write dead letters."""
        retried = {name: each for name, each in failed.items() if each.outcome is Outcome.RETRIED}
        dead = {name: each for name, each in failed.items() if each.outcome is not Outcome.RETRIED}
        if not retried:
            await self._finish(arrival, dead, record, stop, attempts=attempt)
            return
        if dead and not await self.records.bury(arrival, dead, stop, attempts=attempt):
            await arrival.requeue()
            return
        # Handlers that gave the message up must not run again; for those that succeeded it is a duplicate.
        names = tuple(name for name in retried if name is not None) if dead or arrival.handlers else ()
        names += self.routing.elsewhere(arrival) if names or dead else ()
        shortest = min((each.after for each in retried.values() if each.after is not None), default=None)
        if arrival.key is None:
            # Clear the record first: if the process ends while the copy waits, the message did not cause that.
            if record.starts and not await self.records.forget(_id(arrival), stop):
                await arrival.requeue()
                return
            delay = await arrival.retry(shortest, handlers=names)
        else:  # its key waits for it, so it cannot go to a retry queue: the database counts its failures
            updated = await self.records.fail(_id(arrival), stop)
            if updated is None:
                await arrival.requeue()
                return
            delay = arrival.waits = delay_for(self.policy.delays, attempt, shortest)
            arrival.failures, arrival.first_failed_at = updated.failures, updated.first_failed_at
            arrival.handlers = names or arrival.handlers
        self.outcomes[Outcome.RETRIED] += len(retried)
        self.measurements.failed(arrival.message, retried)
        self.measurements.retried(delay)
        after = f"{delay.total_seconds():g}s"
        self.reports.failed(_retried_event(retried), arrival.message, retried, attempt=attempt, after=after)

    async def _finish(
        self, arrival: Arrival, failed: Failed, record: CrashRecord, stop: asyncio.Event, *, attempts: int | None = None
    ) -> None:
        """Write dead letters for failed handlers, if there are any, clear the crash record, and only then ack."""
        delivery = arrival.delivery
        count = delivery.delivery_headers.attempt if attempts is None else attempts
        has_record = bool(record.starts or record.failures) or count > delivery.delivery_headers.attempt
        done = not failed or await self.records.bury(arrival, failed, stop, attempts=count)
        if done and has_record:
            done = await self.records.forget(_id(arrival), stop)
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
