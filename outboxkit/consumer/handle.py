"""One delivery from its arrival to its ack: each handler in a transaction of its own, the inbox row first.

Which handlers a delivery is for is decided without I/O.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import cast

import structlog
from sqlalchemy.orm import Session

from outboxkit import inbox, window
from outboxkit.brokers import Delivery, Malformed
from outboxkit.consumer import decisions
from outboxkit.consumer.decisions import Decision, Policy
from outboxkit.consumer.key_queues import Arrival, Mode
from outboxkit.consumer.records import CrashRecord, CrashRecords, DeadLetterWriter
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.consumer.transactions import Escaped, Transactions
from outboxkit.inbox import Handler, Outcome
from outboxkit.message import Message
from outboxkit.outage import Clock
from outboxkit.retry import delay_for


class Routing:
    """The handlers of a consumer, by the types that they take.

    Args:
        handlers: several may take one type.
        policy: when a message is stale.
        ordered: whether messages of one key are handled one after the other.
        saw: hears when a message was made that is about to be handled.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        policy: Policy,
        ordered: bool,
        saw: Callable[[datetime], None] = lambda _: None,
    ) -> None:
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            self._by_type.setdefault(handler.message_type, []).append(handler)
        self._names = {type_: frozenset(taker.name for taker in takers) for type_, takers in self._by_type.items()}
        self._together = {type_ for type_, takers in self._by_type.items() if all(taker.batch for taker in takers)}
        self._policy = policy
        self._saw = saw
        self._ordered = ordered

    def arrival(self, delivery: Delivery) -> Arrival:
        """How this delivery is handled."""
        message = delivery.message
        if not isinstance(message, Message) or delivery.dropped:
            return Arrival(delivery, Mode.SINGLE)
        way = Mode.BATCHED if message.type in self._together else Mode.SINGLE
        key = message.key if self._ordered else None
        return Arrival(delivery, Mode.ISOLATED if delivery.redeliveries else way, key, size=len(message.payload))

    def names(self, arrival: Arrival) -> list[str]:
        """The names of those that may be running for it."""
        message, named = arrival.delivery.message, arrival.handlers or arrival.delivery.delivery_headers.handlers
        takers = self._by_type.get(message.type, []) if isinstance(message, Message) else []
        return [taker.name for taker in takers if not named or taker.name in named]

    def handlers(self, arrival: Arrival, now: datetime, attempt: int = 1) -> Sequence[Handler] | Decision:
        """Those that are to run for it now; or why none may."""
        delivery, message = arrival.delivery, arrival.delivery.message
        if isinstance(message, Malformed):
            return decisions.malformed(message)
        if delivery.dropped:
            return decisions.dropped()
        takers, named = self._by_type.get(message.type), _named(arrival)
        if takers is None:
            return self.no_handler(arrival, (), attempt)
        if named:
            takers = [taker for taker in takers if taker.name in named]
            if not takers:
                return self.no_handler(arrival, named, attempt)
        made = window.message_time(message.id, message.created_at, delivery.delivery_headers.accepted_at)
        if made is not None:
            if window.is_too_old(made, now=now, retention=self._policy.retention, skew=self._policy.skew):
                return decisions.stale(made, self._policy)
            self._saw(made)
        return takers

    def no_handler(self, arrival: Arrival, named: Sequence[str], attempt: int) -> Decision:
        """For a message that no handler here is for, or none of those that are named."""
        message = arrival.delivery.message
        assert isinstance(message, Message)  # noqa: S101 - what is malformed has been told apart before
        limit = self._policy.max_attempts
        return decisions.no_handler(message, sorted(self._by_type), named, attempt=attempt, max_attempts=limit)

    def elsewhere(self, arrival: Arrival) -> tuple[str, ...]:
        """Names that the message is for and that no handler here has which takes it: those of another version."""
        known = self._names_of(arrival)
        return tuple(name for name in _named(arrival) if name not in known)

    def known_names(self, arrival: Arrival) -> tuple[str, ...]:
        """The handlers that the message is for, if every one is known here; else none: it concerns the message."""
        return () if self.elsewhere(arrival) else _named(arrival)

    def _names_of(self, arrival: Arrival) -> frozenset[str]:
        type_ = arrival.delivery.message.type
        return frozenset() if type_ is None else self._names.get(type_, frozenset())


def _named(arrival: Arrival) -> tuple[str, ...]:
    return arrival.handlers or arrival.delivery.delivery_headers.handlers


REQUEUE_FRESH_AFTER = 10
"""A message that came back so often is renewed: RabbitMQ 4 drops one at the 20th time."""


class HandlerRunner:
    """What a consumer does with one delivery after another.

    Attributes:
        outcomes: what became of the deliveries, counted for each handler.
    """

    def __init__(
        self,
        *,
        routing: Routing,
        transactions: Transactions,
        suspicion: CrashRecords,
        burial: DeadLetterWriter,
        reports: Reports,
        policy: Policy,
        now: Clock,
        outcomes: Counter[Outcome],
    ) -> None:
        self._routing = routing
        self._transactions = transactions
        self._suspicion = suspicion
        self._burial = burial
        self._reports = reports
        self._policy = policy
        self._now = now
        self.outcomes = outcomes
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        """Run the handlers; then ack, or postpone, or set aside and ack. The ack always comes after the commits.

        A delivery that keeps its place in its lane is not settled: `arrival.waits` says how long.
        """
        delivery, known, arrival.waits = arrival.delivery, CrashRecord(), None
        if delivery.redeliveries >= REQUEUE_FRESH_AFTER and arrival.key is None:
            # The copy counts as new: nobody would delete the record of its earlier starts.
            forgotten = await self._suspicion.forget(_id(delivery), stop)
            await (delivery.requeue_fresh() if forgotten else delivery.requeue())
            return
        if arrival.way is Mode.ISOLATED:
            found = await self._suspicion.start(_id(delivery), stop)
            if found is None:
                await delivery.requeue()
                return
            known = found
            if known.starts > self._policy.max_crashes:
                await self._set_aside(arrival, {None: decisions.crash(known.starts - 1)}, known, stop)
                return
        attempt = delivery.delivery_headers.attempt + max(arrival.failures, known.failures)
        handlers = self._routing.handlers(arrival, self._now(), attempt)
        if isinstance(handlers, Decision):
            names = self._routing.known_names(arrival) or (None,)
            await self._conclude(arrival, dict.fromkeys(names, handlers), known, attempt, stop)
            return
        try:
            await self._run_all(arrival, handlers, known, attempt, stop)
        except asyncio.CancelledError:  # a stop does not wait for it: it comes again, and has killed nobody
            if known.starts and self._transactions.told_to_end:
                await self._suspicion.call_off(_id(delivery), known, stop)
            raise

    async def give_up(self, arrival: Arrival, error: BaseException, stop: asyncio.Event) -> None:
        """Set a message aside around which something failed that nobody expected.

        Raises:
            Exception: that failed as well, and the delivery may not be settled.
        """
        known = CrashRecord(starts=int(arrival.way is Mode.ISOLATED), failures=arrival.failures)
        await self._set_aside(arrival, {None: decisions.given_up(error)}, known, stop)

    async def _run_all(
        self, arrival: Arrival, handlers: Sequence[Handler], known: CrashRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        """Each handler in a transaction of its own; what it raises is read as its decision."""
        delivery, limit = arrival.delivery, self._policy.max_attempts
        failed: dict[str | None, Decision] = {}
        for handler in handlers:
            try:
                outcome = await self._transactions.run(self._work(delivery, handler, attempt), stop)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is its message's failure
                cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ is not None else error
                failed[handler.name] = decisions.decide(cause, handler, attempt=attempt, max_attempts=limit)
                continue
            if outcome is None:
                await delivery.requeue()
                return
            self.outcomes[outcome] += 1
            self._log.debug("delivery", outcome=str(outcome), handler=handler.name, message_id=_id(delivery))
        if elsewhere := self._routing.elsewhere(arrival):
            failed[None] = self._routing.no_handler(arrival, elsewhere, attempt)
        await self._conclude(arrival, failed, known, attempt, stop)

    def _work(self, delivery: Delivery, handler: Handler, attempt: int) -> Callable[[Session], Outcome]:
        return partial(
            inbox.run_once,
            message=cast("Message", delivery.message),
            handler=handler,
            attempt=attempt,
            accepted_at=delivery.delivery_headers.accepted_at,
        )

    async def _conclude(
        self, arrival: Arrival, failed: Failed, known: CrashRecord, attempt: int, stop: asyncio.Event
    ) -> None:
        delivery = arrival.delivery
        again = {name: one for name, one in failed.items() if one.outcome is Outcome.RETRIED}
        dead = {name: one for name, one in failed.items() if one.outcome is not Outcome.RETRIED}
        if not again:
            await self._set_aside(arrival, dead, known, stop, attempts=attempt)
            return
        if dead and not await self._burial.bury(arrival, dead, stop, attempts=attempt):
            await delivery.requeue()
            return
        # What is dead must not run again; what is done is a duplicate.
        names = tuple(name for name in again if name is not None) if dead else ()
        names += self._routing.elsewhere(arrival) if names or dead else ()
        wanted = min((one.after for one in again.values() if one.after is not None), default=None)
        if arrival.key is None:
            # first that its start has ended: the copy may have to wait, and it is not the message that ends it then
            if known.starts and not await self._suspicion.forget(_id(delivery), stop):
                await delivery.requeue()
                return
            delay = await delivery.retry(wanted, handlers=names)
        else:  # its key waits for it, so it cannot go to a retry queue: the database keeps count
            found = await self._suspicion.fail(_id(delivery), stop)
            if found is None:
                await delivery.requeue()
                return
            delay = arrival.waits = delay_for(self._policy.ladder, attempt, wanted)
            arrival.failures, arrival.first_failed_at = found.failures, found.first_failed_at
            arrival.handlers = names or arrival.handlers
        self.outcomes[Outcome.RETRIED] += len(again)
        after = f"{delay.total_seconds():g}s"
        event = "no handler here, will be retried" if set(again) == {None} else "handler failed, will be retried"
        self._reports.failed(event, delivery.message, again, attempt=attempt, after=after)

    async def _set_aside(
        self, arrival: Arrival, failed: Failed, known: CrashRecord, stop: asyncio.Event, *, attempts: int | None = None
    ) -> None:
        """Bury what failed, if anything, forget what was recorded, and only then ack."""
        delivery = arrival.delivery
        count = delivery.delivery_headers.attempt if attempts is None else attempts
        recorded = bool(known.starts or known.failures) or count > delivery.delivery_headers.attempt
        done = not failed or await self._burial.bury(arrival, failed, stop, attempts=count)
        if done and recorded:
            done = bool(await self._suspicion.forget(_id(delivery), stop))
        await (delivery.ack() if done else delivery.requeue())


def _id(delivery: Delivery) -> str:
    return delivery.message.id if isinstance(delivery.message, Message) else ""
