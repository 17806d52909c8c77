"""Which handlers a delivery is for, and how it is handled: decided without I/O."""

from collections.abc import Callable, Sequence
from datetime import datetime

from outboxkit import window
from outboxkit.brokers import Delivery, Malformed
from outboxkit.consumer import decision as decisions
from outboxkit.consumer.decision import Decision, Policy
from outboxkit.consumer.lanes import Arrival, Way
from outboxkit.inbox import Handler
from outboxkit.message import Message


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
            return Arrival(delivery, Way.SINGLY)
        way = Way.TOGETHER if message.type in self._together else Way.SINGLY
        key = message.key if self._ordered else None
        return Arrival(delivery, Way.ALONE if delivery.returned else way, key, size=len(message.payload))

    def names(self, arrival: Arrival) -> list[str]:
        """The names of those that may be running for it."""
        message, named = arrival.delivery.message, arrival.handlers or arrival.delivery.marks.handlers
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
        made = window.message_time(message.id, message.created_at, delivery.marks.accepted_at)
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
    return arrival.handlers or arrival.delivery.marks.handlers
