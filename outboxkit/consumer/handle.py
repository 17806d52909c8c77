"""One delivery from its arrival to its ack: each handler in a transaction of its own, the inbox row first.

Routing, the choice of a delivery's handlers, does no I/O.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import cast

import structlog
from sqlalchemy.orm import Session
from structlog.typing import FilteringBoundLogger

from outboxkit import inbox, window
from outboxkit.brokers import Delivery, Malformed
from outboxkit.compression import INFLATED_FACTOR, compression_named
from outboxkit.consumer import decisions
from outboxkit.consumer.decisions import ConsumerPolicy
from outboxkit.consumer.key_queues import Arrival, Mode
from outboxkit.consumer.records import CrashRecord, Records
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.consumer.transactions import Escaped, Transactions
from outboxkit.inbox import Handler, Outcome
from outboxkit.inbox.failure import NEWER_VERSION, Decision, decide
from outboxkit.limits import Limit
from outboxkit.message import Message
from outboxkit.outage import Clock
from outboxkit.retry import delay_for


class Routing:
    """A consumer's handlers by message type, and the choice of those that run for a delivery. Pure.

    Args:
        handlers: several may handle one type.
        policy: when a message is stale.
        ordered: whether messages of one key are handled one after the other.
        on_message: called with the message time of each message that is about to be handled.
        monotonic: a monotonic clock in seconds, for the limits of handlers.

    Attributes:
        limits: the limits of handlers that have any, by their names.
        shortest_delay: the shortest retry delay.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        policy: ConsumerPolicy,
        ordered: bool,
        on_message: Callable[[datetime], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            for type_ in handler.message_types:
                self._by_type.setdefault(type_, []).append(handler)
        self._names = {type_: frozenset(each.name for each in group) for type_, group in self._by_type.items()}
        self._batched = {type_ for type_, group in self._by_type.items() if all(each.batch for each in group)}
        limited = [each for each in handlers if each.concurrency or each.rate]
        self.limits = {each.name: Limit(each.concurrency, each.rate, clock=monotonic) for each in limited}
        self.shortest_delay = min(policy.delays)
        self._policy = policy
        self._on_message = on_message
        self._ordered = ordered

    def arrival(self, delivery: Delivery) -> Arrival:
        """The arrival of this delivery: its mode, key and size."""
        message = delivery.message
        if not isinstance(message, Message) or delivery.dropped:
            return Arrival(delivery, Mode.SINGLE)
        mode = Mode.BATCHED if message.type in self._batched else Mode.SINGLE
        key = message.key if self._ordered else None
        size = len(message.payload)
        if message.content_encoding and compression_named(message.content_encoding):
            size *= INFLATED_FACTOR
        arrival = Arrival(delivery, Mode.ISOLATED if delivery.redeliveries else mode, key, size=size)
        if self.limits:
            arrival.limits = tuple(self.limits[name] for name in self.names(arrival) if name in self.limits)
        return arrival

    def names(self, arrival: Arrival) -> list[str]:
        """The names of the handlers that may be running for it."""
        message, names = arrival.delivery.message, _required_names(arrival)
        handlers = self._by_type.get(message.type, []) if isinstance(message, Message) else []
        return [handler.name for handler in handlers if not names or handler.name in names]

    def handlers(self, arrival: Arrival, now: datetime, attempt: int = 1) -> Sequence[Handler] | Decision:
        """The handlers to run for it now, or the decision if none may run."""
        delivery, message = arrival.delivery, arrival.delivery.message
        if isinstance(message, Malformed):
            return decisions.malformed(message)
        if delivery.dropped:
            return decisions.dropped()
        handlers, names = self._by_type.get(message.type), _required_names(arrival)
        if handlers is None:
            return self.no_handler(arrival, (), attempt)
        if names:
            handlers = [handler for handler in handlers if handler.name in names]
            if not handlers:
                return self.no_handler(arrival, names, attempt)
        message_time = window.message_time(message.id, message.created_at, delivery.delivery_headers.accepted_at)
        if message_time is not None:
            if window.is_too_old(message_time, now=now, retention=self._policy.retention, skew=self._policy.skew):
                return decisions.stale_message(message_time, self._policy)
            self._on_message(message_time)
        return handlers

    def no_handler(self, arrival: Arrival, names: Sequence[str], attempt: int) -> Decision:
        """The decision on a message that has no handler here, or none of the required names."""
        message = arrival.delivery.message
        assert isinstance(message, Message)  # noqa: S101 - `handlers` has returned for malformed ones
        limit = self._policy.max_attempts
        return decisions.no_handler(message, sorted(self._by_type), names, attempt=attempt, max_attempts=limit)

    def elsewhere(self, arrival: Arrival) -> tuple[str, ...]:
        """Required names that no handler here has for this type: another version of this consumer has them."""
        names_here = self._names_of(arrival)
        return tuple(name for name in _required_names(arrival) if name not in names_here)

    def known_names(self, arrival: Arrival) -> tuple[str, ...]:
        """The required names, if every one is known here. Otherwise none: the decision concerns the message itself."""
        return () if self.elsewhere(arrival) else _required_names(arrival)

    def _names_of(self, arrival: Arrival) -> frozenset[str]:
        type_ = arrival.delivery.message.type
        return frozenset() if type_ is None else self._names.get(type_, frozenset())


def _required_names(arrival: Arrival) -> tuple[str, ...]:
    return arrival.handlers or arrival.delivery.delivery_headers.handlers


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
    """

    routing: Routing
    transactions: Transactions
    records: Records
    reports: Reports
    policy: ConsumerPolicy
    now: Clock
    outcomes: Counter[Outcome]
    _log: FilteringBoundLogger = field(
        init=False, default_factory=lambda: structlog.get_logger("outboxkit").bind(process="consumer")
    )

    async def handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        """Run the handlers; then ack, retry, or write dead letters and ack. The ack always follows the commits.

        An ordered delivery that is retried stays unsettled: `arrival.waits` is its delay.
        """
        delivery, record, arrival.waits = arrival.delivery, CrashRecord(), None
        if delivery.redeliveries >= REQUEUE_FRESH_AFTER and arrival.key is None:
            # The copy counts as new, so the record of its earlier starts has to go first.
            is_cleared = await self.records.forget(_id(delivery), stop)
            await (delivery.requeue_fresh() if is_cleared else delivery.requeue())
            return
        if arrival.mode is Mode.ISOLATED:
            started = await self.records.start(_id(delivery), stop)
            if started is None:
                await delivery.requeue()
                return
            record = started
            if record.starts > self.policy.max_crashes:
                await self._finish(arrival, {None: decisions.crash(record.starts - 1)}, record, stop)
                return
        attempt = delivery.delivery_headers.attempt + max(arrival.failures, record.failures)
        handlers = self.routing.handlers(arrival, self.now(), attempt)
        if isinstance(handlers, Decision):
            names = self.routing.known_names(arrival) or (None,)
            await self._conclude(arrival, dict.fromkeys(names, handlers), record, attempt, stop)
            return
        try:
            await self._run_all(arrival, handlers, record, attempt, stop)
        except asyncio.CancelledError:  # a stop did not wait for it: it comes again, and has not killed the process
            if record.starts and self.transactions.is_cancelled:
                await self.records.call_off(_id(delivery), record, stop)
            raise

    async def give_up(self, arrival: Arrival, error: BaseException, stop: asyncio.Event) -> None:
        """Make a dead letter of a message around which an unexpected error happened.

        Raises:
            Exception: that failed as well, and the delivery may be unsettled.
        """
        record = CrashRecord(starts=int(arrival.mode is Mode.ISOLATED), failures=arrival.failures)
        await self._finish(arrival, {None: decisions.given_up(error)}, record, stop)

    async def _run_all(
        self, arrival: Arrival, handlers: Sequence[Handler], record: CrashRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Run each handler in a transaction of its own, and collect the decisions on those that failed."""
        delivery, limit = arrival.delivery, self.policy.max_attempts
        failed: dict[str | None, Decision] = {}
        for handler in handlers:
            try:
                outcome = await self.transactions.run(self._work(delivery, handler, attempt), stop)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is its message's failure
                cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ is not None else error
                failed[handler.name] = decide(cause, handler, attempt=attempt, max_attempts=limit)
                continue
            if outcome is None:
                await delivery.requeue()
                return
            self.outcomes[outcome] += 1
            self._log.debug("delivery", outcome=str(outcome), handler=handler.name, message_id=_id(delivery))
        if elsewhere := self.routing.elsewhere(arrival):
            failed[None] = self.routing.no_handler(arrival, elsewhere, attempt)
        await self._conclude(arrival, failed, record, attempt, stop)

    def _work(self, delivery: Delivery, handler: Handler, attempt: int) -> Callable[[Session], Outcome]:
        return partial(
            inbox.run_once,
            message=cast("Message", delivery.message),
            handler=handler,
            attempt=attempt,
            accepted_at=delivery.delivery_headers.accepted_at,
        )

    async def _conclude(
        self, arrival: Arrival, failed: Failed, record: CrashRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Settle the delivery once its handlers have run: ack it, retry it, or write dead letters."""
        delivery = arrival.delivery
        retried = {name: each for name, each in failed.items() if each.outcome is Outcome.RETRIED}
        dead = {name: each for name, each in failed.items() if each.outcome is not Outcome.RETRIED}
        if not retried:
            await self._finish(arrival, dead, record, stop, attempts=attempt)
            return
        if dead and not await self.records.bury(arrival, dead, stop, attempts=attempt):
            await delivery.requeue()
            return
        # Handlers that gave the message up must not run again; for those that succeeded it is a duplicate.
        names = tuple(name for name in retried if name is not None) if dead else ()
        names += self.routing.elsewhere(arrival) if names or dead else ()
        shortest = min((each.after for each in retried.values() if each.after is not None), default=None)
        if arrival.key is None:
            # Clear the record first: if the process ends while the copy waits, the message did not cause that.
            if record.starts and not await self.records.forget(_id(delivery), stop):
                await delivery.requeue()
                return
            delay = await delivery.retry(shortest, handlers=names)
        else:  # its key waits for it, so it cannot go to a retry queue: the database counts its failures
            updated = await self.records.fail(_id(delivery), stop)
            if updated is None:
                await delivery.requeue()
                return
            delay = arrival.waits = delay_for(self.policy.delays, attempt, shortest)
            arrival.failures, arrival.first_failed_at = updated.failures, updated.first_failed_at
            arrival.handlers = names or arrival.handlers
        self.outcomes[Outcome.RETRIED] += len(retried)
        after = f"{delay.total_seconds():g}s"
        self.reports.failed(_retried_event(retried), delivery.message, retried, attempt=attempt, after=after)

    async def _finish(
        self, arrival: Arrival, failed: Failed, record: CrashRecord, stop: asyncio.Event, *, attempts: int | None = None
    ) -> None:
        """Write dead letters for what failed, if anything, clear the crash record, and only then ack."""
        delivery = arrival.delivery
        count = delivery.delivery_headers.attempt if attempts is None else attempts
        has_record = bool(record.starts or record.failures) or count > delivery.delivery_headers.attempt
        done = not failed or await self.records.bury(arrival, failed, stop, attempts=count)
        if done and has_record:
            done = await self.records.forget(_id(delivery), stop)
        await (delivery.ack() if done else delivery.requeue())


def _retried_event(retried: Failed) -> str:
    """The event in the log about decisions to try a message again."""
    if set(retried) == {None}:
        return "no handler here, will be retried"
    if {each.reason for each in retried.values()} == {NEWER_VERSION}:
        return "newer version than known here, will be retried"
    return "handler failed, will be retried"


def _id(delivery: Delivery) -> str:
    return delivery.message.id if isinstance(delivery.message, Message) else ""
