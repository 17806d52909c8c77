"""The handlers of a delivery, and the mode in which they run. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from outboxkit.brokers import Delivery, message_in
from outboxkit.codec.envelopes import Reader
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.payloads import plain_size
from outboxkit.consumer import decisions
from outboxkit.consumer.decisions import ConsumerPolicy, Decision
from outboxkit.consumer.payload_memory import counter
from outboxkit.events import is_pydantic
from outboxkit.inbox import Handler
from outboxkit.message import Message
from outboxkit.runtime import window


class Mode(StrEnum):
    """The mode in which a delivery is handled."""

    ISOLATED = "isolated"
    """Nothing else runs in the process meanwhile: this delivery may have killed one."""
    BATCHED = "batched"
    """Shares a transaction with other deliveries."""
    SINGLE = "single"
    """In transactions of its own, concurrently with other deliveries."""


@dataclass(slots=True, eq=False)
class Limit:
    """The number of messages that a handler may handle at once, and the number that it handles now."""

    most: int
    running: int = 0


@dataclass(slots=True, eq=False)
class Arrival:
    """A delivery that waits for its turn, or is being handled.

    Attributes:
        key: its ordering key; None if it has none, or if the consumer is not ordered.
        number: its rank in order of arrival.
        size: bytes of its payload once it is inflated, or more if its instances need more memory than plain objects.
        room: the bytes of all documents that are made of it at the same time: in a batch each handler has one.
        waits: the delay before its next attempt, spent unsettled in its key queue; None if there is none.
        failures: the number of failures that were followed by such a delay.
        first_failed_at: the time of the first of them.
        handlers: the names of the handlers that still have to run; if empty, the delivery's own.
        is_stuck: whether it could neither be handled nor become a dead letter, and is to be requeued after a while.
        settled: whether it was acked, requeued or copied, or the attempt to do so may have succeeded.
        requeued: whether it was given back.
        done: the names of handlers that have handled it before, found by one query for many deliveries; None: the query
            has not run.
        is_duplicate: whether one of its handlers had handled it before.
        read: what a reader of foreign envelopes has found in it; None: it has not been read by one.
    """

    delivery: Delivery
    mode: Mode
    key: str | None = None
    number: int = 0
    size: int = 0
    room: int = 0
    waits: timedelta | None = None
    failures: int = 0
    first_failed_at: datetime | None = None
    handlers: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    is_stuck: bool = False
    settled: bool = False
    requeued: bool = False
    done: frozenset[str] | None = None
    is_duplicate: bool = False
    read: Message | Malformed | None = None

    @property
    def message(self) -> Message | Malformed:
        """The message."""
        return self.delivery.message if self.read is None else self.read

    async def ack(self) -> None:
        """Ack the delivery."""
        self.settled = True
        await self.delivery.ack()

    async def requeue(self) -> None:
        """Give it back unhandled. One with a key stays unacked: the close of its subscriber gives it back, in order."""
        self.settled = self.requeued = True
        if self.key is None:
            await self.delivery.requeue()

    async def retry(self, after: timedelta | None, *, handlers: tuple[str, ...]) -> timedelta:
        """Have it come again later; it is not settled if no copy of it could be made."""
        delay = await self.delivery.retry(after, handlers=handlers)
        self.settled = True
        return delay

    async def requeue_fresh(self) -> None:
        """Put a copy at the end of the queue; it is not settled if none could be made."""
        await self.delivery.requeue_fresh()
        self.settled = True


PYDANTIC_COPIES = 2
"""While it reads a payload, pydantic holds a document of its own beside the event: 95 times the bytes at most."""


class Routing:
    """A consumer's handlers by message type, and the choice of those that run for a delivery. Pure.

    Args:
        policy: when a message is stale.
        ordered: whether messages of one key are handled one after the other.
        readers: of foreign envelopes.
        on_message: called with the type and the message time of each message that is about to be handled.

    Attributes:
        limits: of the handlers that have a concurrency of their own, by their names.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        policy: ConsumerPolicy,
        ordered: bool,
        on_message: Callable[[str, datetime], None] = lambda *_: None,
        readers: Sequence[Reader] = (),
    ) -> None:
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            for type_ in handler.message_types:
                self._by_type.setdefault(type_, []).append(handler)
        places = {type_: {each.in_thread for each in group} for type_, group in self._by_type.items()}
        self._copies = {
            type_: [PYDANTIC_COPIES if is_pydantic(each.event_type) else 1 for each in group]
            for type_, group in self._by_type.items()
        }
        self._counters = {type_: counter(each.event_type for each in group) for type_, group in self._by_type.items()}
        self._threaded = {type_ for type_, in_thread in places.items() if in_thread == {True}}
        self._batched = {
            type_
            for type_, group in self._by_type.items()
            if all(each.batch for each in group) and len(places[type_]) == 1
        }
        self.limits = {each.name: Limit(each.concurrency) for each in handlers if each.concurrency}
        self._policy, self._readers = policy, readers
        self._on_message = on_message
        self._ordered = ordered

    def arrival(self, delivery: Delivery) -> Arrival:
        """The arrival of this delivery: its mode, key and size."""
        limit, readers = self._policy.max_message_bytes, self._readers
        by_reader = message_in(delivery, readers, limit=limit) if readers else None
        message = by_reader or delivery.message
        if not isinstance(message, Message) or delivery.dropped:
            return Arrival(delivery, Mode.SINGLE, read=by_reader)
        mode = Mode.BATCHED if message.type in self._batched else Mode.SINGLE
        key = message.key if self._ordered else None
        count = self._counters.get(message.type, len)
        size = plain_size(message.payload, message.content_encoding, limit=limit, count=count)
        arrival = Arrival(delivery, Mode.ISOLATED if delivery.redeliveries else mode, key, size=size, read=by_reader)
        copies = self._copies.get(message.type, [1])
        arrival.room = size * (sum(copies) if arrival.mode is Mode.BATCHED else max(copies))
        if self.limits:
            arrival.limits = tuple(self.limits[name] for name in self.names(arrival) if name in self.limits)
        return arrival

    def in_thread(self, arrival: Arrival) -> bool:
        """Whether all of its type's handlers run in threads."""
        return arrival.message.type in self._threaded

    def names(self, arrival: Arrival) -> list[str]:
        """The names of the handlers that may be running for it."""
        message, names = arrival.message, _required_names(arrival)
        handlers = self._by_type.get(message.type, []) if isinstance(message, Message) else []
        return [handler.name for handler in handlers if not names or handler.name in names]

    def handlers(self, arrival: Arrival, now: datetime, attempt: int = 1) -> Sequence[Handler] | Decision:
        """The handlers to run for it now, or the decision if none may run. No handler: the message is ignored."""
        delivery, message = arrival.delivery, arrival.message
        if isinstance(message, Malformed):
            return decisions.malformed(message)
        if delivery.dropped:
            return decisions.dropped()
        if arrival.size > self._policy.max_message_bytes:
            return decisions.too_large(self._policy.max_message_bytes)
        handlers, names = self._by_type.get(message.type), _required_names(arrival)
        if handlers is None and not names and any(fnmatchcase(message.type, each) for each in self._policy.ignore):
            return ()
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
            self._on_message(message.type, message_time)
        return handlers

    def no_handler(self, arrival: Arrival, names: Sequence[str], attempt: int) -> Decision:
        """The decision on a message that has no handler here, or none of the required names."""
        message = arrival.message
        assert isinstance(message, Message)  # noqa: S101 - `handlers` has returned for malformed ones
        limit = self._policy.max_attempts
        return decisions.no_handler(message, sorted(self._by_type), names, attempt=attempt, max_attempts=limit)

    def elsewhere(self, arrival: Arrival) -> tuple[str, ...]:
        """Required names that no handler here has for this type: another version of this consumer has them."""
        here = self._by_type.get(arrival.message.type or "", ())
        return tuple(name for name in _required_names(arrival) if all(name != each.name for each in here))

    def known_names(self, arrival: Arrival) -> tuple[str, ...]:
        """The required names, if every one is known here. Otherwise none: the decision concerns the message itself."""
        return () if self.elsewhere(arrival) else _required_names(arrival)


def _required_names(arrival: Arrival) -> tuple[str, ...]:
    return arrival.handlers or arrival.delivery.delivery_headers.handlers
