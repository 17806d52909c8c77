"""Routing: the choice of the handlers that run for a delivery, and of the mode in which they run. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime

from outboxkit.brokers import Delivery, reading
from outboxkit.codec.envelopes import Reader
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.payloads import plain_size
from outboxkit.consumer import decisions, growth
from outboxkit.consumer.decisions import ConsumerPolicy
from outboxkit.consumer.key_queues import Arrival, Limit, Mode
from outboxkit.events import is_pydantic
from outboxkit.inbox import Handler
from outboxkit.inbox.failure import Decision
from outboxkit.message import Message
from outboxkit.runtime import window

PYDANTIC_COPIES = 2
"""While it reads a payload, pydantic holds a document of its own beside the event: 86 times the bytes at most."""


class Routing:
    """A consumer's handlers by message type, and the choice of those that run for a delivery. Pure.

    Args:
        handlers: several may handle one type.
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
        self._names = {type_: frozenset(each.name for each in group) for type_, group in self._by_type.items()}
        places = {type_: {each.in_thread for each in group} for type_, group in self._by_type.items()}
        self._copies = {
            type_: [PYDANTIC_COPIES if is_pydantic(each.event_type) else 1 for each in group]
            for type_, group in self._by_type.items()
        }
        self._counters = {
            type_: growth.counter(each.event_type for each in group) for type_, group in self._by_type.items()
        }
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
        by_reader = reading.message_in(delivery, readers, limit=limit) if readers else None
        message = by_reader or delivery.message
        if not isinstance(message, Message) or delivery.dropped:
            return Arrival(delivery, Mode.SINGLE, read=by_reader)
        mode = Mode.BATCHED if message.type in self._batched else Mode.SINGLE
        key = message.key if self._ordered else None
        count = self._counters.get(message.type, len)
        size = plain_size(message.payload, message.content_encoding, limit=limit, count=count)
        arrival = Arrival(delivery, Mode.ISOLATED if delivery.redeliveries else mode, key, size=size, read=by_reader)
        copies = self._copies.get(message.type, [1])
        arrival.events = sum(copies) if arrival.mode is Mode.BATCHED else max(copies)
        if self.limits:
            arrival.limits = tuple(self.limits[name] for name in self.names(arrival) if name in self.limits)
        return arrival

    def in_thread(self, arrival: Arrival) -> bool:
        """Whether its handlers run in threads, and so in no batch."""
        return arrival.message.type in self._threaded

    def names(self, arrival: Arrival) -> list[str]:
        """The names of the handlers that may be running for it."""
        message, names = arrival.message, _required_names(arrival)
        handlers = self._by_type.get(message.type, []) if isinstance(message, Message) else []
        return [handler.name for handler in handlers if not names or handler.name in names]

    def handlers(self, arrival: Arrival, now: datetime, attempt: int = 1) -> Sequence[Handler] | Decision:
        """The handlers to run for it now, or the decision if none may run."""
        delivery, message = arrival.delivery, arrival.message
        if isinstance(message, Malformed):
            return decisions.malformed(message)
        if delivery.dropped:
            return decisions.dropped()
        if arrival.size > self._policy.max_message_bytes:
            return decisions.too_large(self._policy.max_message_bytes)
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
        names_here = self._names_of(arrival)
        return tuple(name for name in _required_names(arrival) if name not in names_here)

    def known_names(self, arrival: Arrival) -> tuple[str, ...]:
        """The required names, if every one is known here. Otherwise none: the decision concerns the message itself."""
        return () if self.elsewhere(arrival) else _required_names(arrival)

    def _names_of(self, arrival: Arrival) -> frozenset[str]:
        type_ = arrival.message.type
        return frozenset() if type_ is None else self._names.get(type_, frozenset())


def _required_names(arrival: Arrival) -> tuple[str, ...]:
    return arrival.handlers or arrival.delivery.delivery_headers.handlers
