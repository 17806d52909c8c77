"""The publish plan of one batch: which messages may be unconfirmed together, and which one closed a channel. Pure.

The plan goes by what the publisher remembers of routes longer than one batch: confirmed, unroutable and nacked ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from outboxkit.brokers import CONFIRMED, KeyGate, Receipt, Verdict
from outboxkit.brokers.rabbitmq.confirms import NACKED, Loss, Receipts
from outboxkit.message import Message

MAX_GROUPS = 64
"""Limit of the groups of a batch, and so of the messages that it publishes of a key with a serialized route."""
INTERNAL_ERROR = 541
CODES_ABOUT_CONTENT = frozenset({311, 406, 501, 502, 503, 505, 540, INTERNAL_ERROR})
"""Reply codes with which the broker closes a channel or connection because of a frame of ours (section 1.2)."""
SERIALIZED_SECONDS = 600.0
"""The time for which a return serializes its route, and a nack, which names no queue, all routes."""
MAX_ROUTES = 10_000
"""Limit of the remembered routes of each kind; when it is reached, all of that kind are forgotten."""
NACK_DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds for which a route is held after its first nack, its second, …, until a message of it is confirmed."""
EARLY_SECONDS = 0.05
"""Tolerance between two clocks: a row may be due slightly before its route is free again."""
RECONNECT_SECONDS, MAX_RECONNECT_SECONDS, QUIET_SECONDS = 0.05, 5.0, 60.0
"""The interval between connections opened because of nacks: doubled each time, reset after a minute without one."""


class ToQueue(NamedTuple):
    """The route of messages that are for one queue alone."""

    queue: str


RoutingTarget = str | ToQueue
"""The way of a message to queues: its routing key, or the one queue that it is for."""


def route_of(message: Message) -> RoutingTarget:
    """The route of a message."""
    return message.routing_key if message.queue is None else ToQueue(message.queue)


def route_name(route: RoutingTarget) -> str:
    """The route as errors and logs name it."""
    return f"queue {route.queue!r}" if isinstance(route, ToQueue) else f"routing key {route!r}"


@dataclass(slots=True)
class _NackedRoute:
    nacks: int = 0
    held_until: float = float("-inf")
    reason: str = ""
    retry_on_new_connection: bool = True


@dataclass(slots=True)
class NackedRoutes:
    """Back-pressure: the routes whose last answer was a nack, and until when each of them is held."""

    clock: Callable[[], float]
    _routes: dict[RoutingTarget, _NackedRoute] = field(default_factory=dict)
    _reconnected_at: float = float("-inf")
    _reconnect_interval: float = RECONNECT_SECONDS

    def __bool__(self) -> bool:
        return bool(self._routes)

    def __contains__(self, route: RoutingTarget) -> bool:
        return route in self._routes

    def held(self) -> Mapping[RoutingTarget, str]:
        """The routes of which nothing may be sent now, with their reasons."""
        now = self.clock() + EARLY_SECONDS
        return {route: nacked.reason for route, nacked in self._routes.items() if nacked.held_until > now}

    def seconds_left(self, route: RoutingTarget) -> float:
        """The seconds for which the route is still held."""
        nacked = self._routes.get(route)
        return max(nacked.held_until - self.clock(), 0.0) if nacked is not None else 0.0

    def record_confirm(self, route: RoutingTarget) -> None:
        """Forget the nacks of this route: the broker has confirmed a message of it."""
        self._routes.pop(route, None)

    def record_nack(self, route: RoutingTarget, reason: str, *, retry_on_new_connection: bool) -> None:
        """Hold the messages of this route for a while.

        Args:
            route: that of the nacked message.
            reason: for receipts and the log.
            retry_on_new_connection: this one may have lost sight of the queue's leader. False if it has confirmed other
                messages of the route.
        """
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        nacked = self._routes.setdefault(route, _NackedRoute())
        if not retry_on_new_connection:
            nacked.nacks = 1
        nacked.held_until = self.clock() + NACK_DELAYS[min(nacked.nacks, len(NACK_DELAYS) - 1)]
        nacked.nacks += 1
        nacked.reason, nacked.retry_on_new_connection = reason, retry_on_new_connection

    def need_new_connection(self, routes: Iterable[RoutingTarget], opened_at: float) -> bool:
        """Whether one of these routes is no longer held, and this connection is older than the end of that time."""
        now = self.clock() + EARLY_SECONDS
        all_nacked = (self._routes[route] for route in routes if route in self._routes)
        return any(each.retry_on_new_connection and opened_at < each.held_until <= now for each in all_nacked)

    def allow_reconnect(self) -> bool:
        """Whether a connection may be opened because of nacks now. True starts the next interval."""
        now = self.clock()
        elapsed = now - self._reconnected_at
        if elapsed < self._reconnect_interval:
            return False
        doubled = min(self._reconnect_interval * 2, MAX_RECONNECT_SECONDS)
        self._reconnect_interval = RECONNECT_SECONDS if elapsed > QUIET_SECONDS else doubled
        self._reconnected_at = now
        return True


@dataclass(slots=True)
class SerializedRoutes:
    """Routes whose messages are sent one at a time per key, because the broker may refuse them.

    A route is serialized until this connection has confirmed a message of it, and for ten minutes after a return. A
    nack serializes all routes for ten minutes, because it names no queue.

    Attributes:
        nacked: the routes under back-pressure.
    """

    clock: Callable[[], float]
    nacked: NackedRoutes = field(init=False)
    _all_until: float = float("-inf")
    _unroutable_until: dict[RoutingTarget, float] = field(default_factory=dict)
    _confirmed: set[RoutingTarget] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nacked = NackedRoutes(self.clock)

    def among(self, routes: set[RoutingTarget]) -> set[RoutingTarget]:
        """Those of the given routes that are serialized now."""
        now = self.clock()
        if self._all_until > now:
            return routes
        if self._unroutable_until:
            self._unroutable_until = {each: until for each, until in self._unroutable_until.items() if until > now}
        return {each for each in routes if each not in self._confirmed or each in self._unroutable_until}

    def record_confirm(self, route: RoutingTarget) -> None:
        """A message of this route was confirmed."""
        if len(self._confirmed) >= MAX_ROUTES:
            self._confirmed.clear()
        self._confirmed.add(route)

    def record_return(self, route: RoutingTarget) -> None:
        """A message of this route was returned as unroutable."""
        self._unroutable_until[route] = self.clock() + SERIALIZED_SECONDS
        self._confirmed.discard(route)

    def record_nack(self) -> None:
        """A message was nacked."""
        self._all_until = self.clock() + SERIALIZED_SECONDS

    def reset_confirmed(self) -> None:
        """Forget the confirmed routes after a reconnect: a broker that is back may lack its queues."""
        self._confirmed.clear()


def blames_a_message(loss: Loss) -> bool:
    """Whether the broker closed because of a message.

    A refused access (403) is about one message if it is to a topic, and about all of them if it is to the exchange.
    """
    return loss.code in CODES_ABOUT_CONTENT or (loss.code == 403 and "access to topic" in loss.reason)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Messages of an earlier batch, one of which is poison: the broker closed a channel or connection because of it.

    Attributes:
        others_pass: the broker has confirmed other messages since. An internal error is then the fault of one of these.
    """

    ids: frozenset[str] = frozenset()
    others_pass: bool = False


NO_CANDIDATES = Candidates()


class PublishPlan:
    """The messages of one `publish`, their receipts so far, and the groups in which they are sent.

    A group holds messages that may be unconfirmed at the same time. Three rules limit it:

    * No id twice, because a returned message is recognized by its id alone.
    * No message behind one of its key whose route is serialized.
    * Only one route for each key. A queue may be unbound at any moment: the broker then returns all messages of one
      route and accepts those of another.

    Args:
        serialized: the publisher's memory of routes. Of a route that was nacked last one message goes ahead, or none
            while the route is held.
        candidates: those that the batch before left.

    Attributes:
        receipts: one for each message; None as long as there is none.
    """

    def __init__(
        self, messages: Sequence[Message], serialized: SerializedRoutes, candidates: Candidates = NO_CANDIDATES
    ) -> None:
        self.messages = messages
        self.receipts: Receipts = [None] * len(messages)
        self._serialized = serialized
        self._back_pressure = serialized.nacked
        self._held = set(self._back_pressure.held()) if self._back_pressure else set()
        self._nacked: set[RoutingTarget] = set()
        self._candidates = candidates
        self._gate = KeyGate()
        self._routes = {route_of(message) for message in messages if message.key is not None}
        self._serialized_now, self._group, self._group_count = set[RoutingTarget](), list[int](), 0
        every = range(len(messages))
        known = [index for index in every if messages[index].id in candidates.ids] if candidates.ids else []
        first, stop = (known[0], known[-1] + 1) if known else (0, 0)
        # A stack: the last part is sent first. Contiguous parts keep the order of every key.
        self._parts: list[Sequence[int]] = (
            [every[stop:], *_halves(every[first:stop]), every[:first]] if known else [every]
        )

    def next_group(self) -> list[int]:
        """The indexes of the messages to send now, in order. Empty if nothing is left to send."""
        self._record_confirmed_routes()
        self._serialized_now = self._serialized.among(self._routes)
        self._group_count += 1
        group: list[int] = []
        while self._parts and not group:
            group, later = self._split(self._parts.pop())
            if later:
                self._parts.append(later)
        self._group = group
        return group

    def fail(self, index: int, receipt: Receipt) -> None:
        """Record a failure of the message itself. Later messages of its key are not sent."""
        self.receipts[index] = receipt
        self._gate.fail(index, self.messages[index])

    def record_refused(self, indexes: Sequence[int]) -> None:
        """Record which messages the broker has returned or nacked. They have their receipts already."""
        for index in indexes:
            receipt = self.receipts[index]
            if receipt is not None:
                self.fail(index, receipt)
                if receipt is NACKED:
                    self._nacked.add(route_of(self.messages[index]))
                else:
                    self._serialized.record_return(route_of(self.messages[index]))

    def is_blocked(self, index: int) -> bool:
        """Whether a message must not be sent: an earlier one of its key failed, or its route is nacked or held.

        If so, the message has its receipt afterwards.
        """
        if (refused := self._gate.refuse(index, self.messages[index])) is not None:
            self.receipts[index] = refused
            return True
        if not (self._nacked or self._held):
            return False
        route = route_of(self.messages[index])
        if route not in self._nacked and route not in self._held:
            return False
        self.fail(index, NACKED)
        return True

    def bisect(self, loss: Loss, unanswered: Sequence[int], unsent: Sequence[int]) -> None:
        """Search the message because of which the broker closed: halve the unanswered ones, or reject a single one.

        An internal error rejects a single message only if other messages pass; else the broker itself may be broken.
        """
        if unsent:
            self._parts.append(unsent)
        if len(unanswered) > 1:
            self._candidates = Candidates(frozenset(self.messages[index].id for index in unanswered))
            self._parts += _halves(unanswered)
        elif unanswered and (loss.code != INTERNAL_ERROR or self._others_pass()):
            self.fail(unanswered[0], Receipt(Verdict.REJECTED, f"the broker closed: {loss.reason}"))
        elif unanswered:
            self.fail(unanswered[0], Receipt(Verdict.UNKNOWN, f"the broker closed: {loss.reason}"))

    def remaining_candidates(self) -> Candidates:
        """The candidates without a definite receipt, for the next batch."""
        undecided = {
            message.id
            for message, receipt in zip(self.messages, self.receipts, strict=True)
            if receipt is None or receipt.verdict is Verdict.UNKNOWN
        }
        ids = self._candidates.ids & undecided if self._candidates.ids else frozenset()
        return Candidates(ids, others_pass=self._others_pass()) if ids else NO_CANDIDATES

    def needs_new_connection(self, opened_at: float) -> bool:
        """Whether nacks call for a connection that is younger than this one, which was opened at `opened_at`."""
        routes = map(route_of, self.messages)
        return bool(self._back_pressure) and self._back_pressure.need_new_connection(routes, opened_at)

    def finish(self, reason: str) -> list[Receipt]:
        """A receipt for every message; `UNKNOWN` with this reason for those without an answer."""
        self._record_confirmed_routes()
        unknown = Receipt(Verdict.UNKNOWN, reason)
        if not (self._nacked or self._held):
            return [unknown if receipt is None else receipt for receipt in self.receipts]
        back_pressure = self._back_pressure_receipts()
        return [
            back_pressure[route_of(message)] if receipt is NACKED else receipt or unknown
            for message, receipt in zip(self.messages, self.receipts, strict=True)
        ]

    def _others_pass(self) -> bool:
        return self._candidates.others_pass or CONFIRMED in self.receipts

    def _back_pressure_receipts(self) -> dict[RoutingTarget, Receipt]:
        """The receipt of the messages of each nacked or held route. No nack is a message's fault.

        The cause of the first nack is unclear: a full queue, or a connection that has lost sight of the queue's leader.
        A nack beside a confirm, or on a new connection as well, is back-pressure.
        """
        confirmed, held = self._confirmed_routes(), self._back_pressure.held()
        receipts = {}
        for route in self._nacked:
            name = route_name(route)
            if route in confirmed:
                reason = f"nacked by the broker, which takes some for {name}: a queue is full"
            elif route in self._back_pressure:
                reason = f"nacked by the broker, on a new connection too: for {name} a queue is full, or has no leader"
            else:
                self._back_pressure.record_nack(route, "", retry_on_new_connection=True)
                self._serialized.record_nack()
                receipts[route] = Receipt(Verdict.UNKNOWN, f"the broker nacked all for {name} on this connection")
                continue
            self._back_pressure.record_nack(route, reason, retry_on_new_connection=route not in confirmed)
            self._serialized.record_nack()
            receipts[route] = Receipt(Verdict.POSTPONED, reason, after=self._delay_of(route))
        for route in self._held - self._nacked:
            reason = held.get(route) or str(NACKED.reason)
            receipts[route] = Receipt(Verdict.POSTPONED, reason, after=self._delay_of(route))
        return receipts

    def _delay_of(self, route: RoutingTarget) -> timedelta:
        return timedelta(seconds=self._back_pressure.seconds_left(route))

    def _confirmed_routes(self) -> set[RoutingTarget]:
        pairs = zip(self.messages, self.receipts, strict=True)
        return {route_of(message) for message, receipt in pairs if receipt is CONFIRMED}

    def _record_confirmed_routes(self) -> None:
        """Record the routes of which the broker has confirmed a message of the last group."""
        for index in self._group if self._back_pressure else ():
            if self.receipts[index] is CONFIRMED and (route := route_of(self.messages[index])) not in self._nacked:
                self._back_pressure.record_confirm(route)
        for index in self._group if self._serialized_now else ():
            if self.receipts[index] is CONFIRMED and (route := route_of(self.messages[index])) in self._serialized_now:
                self._serialized.record_confirm(route)

    def _split(self, part: Sequence[int]) -> tuple[list[int], list[int]]:
        """Divide a part of the batch into the next group and the messages of later ones."""
        messages = self.messages
        ids = {messages[index].id for index in part}
        is_unrestricted = not self._serialized_now and not self._gate and not self._back_pressure
        if is_unrestricted and len(self._routes) <= 1 and len(ids) == len(part):
            return list(part), []
        group: list[int] = []
        later: list[int] = []
        blocked_keys: set[str] = set()
        group_ids: set[str] = set()
        probed_routes: set[RoutingTarget] = set()
        route_of_key: dict[str, RoutingTarget] = {}
        for index in part:
            message = messages[index]
            if self.receipts[index] is not None or self.is_blocked(index):
                continue
            route = route_of(message)
            changes_route = message.key is not None and route_of_key.setdefault(message.key, route) != route
            if changes_route or message.id in group_ids or message.key in blocked_keys or route in probed_routes:
                if message.key is not None:
                    blocked_keys.add(message.key)
                later.append(index)
                continue
            group_ids.add(message.id)
            group.append(index)
            if route in self._back_pressure:
                probed_routes.add(route)
            if message.key is not None and (route in probed_routes or route in self._serialized_now):
                blocked_keys.add(message.key)
        return group, later if self._group_count < MAX_GROUPS else self._without_keyed(later)

    def _without_keyed(self, later: list[int]) -> list[int]:
        """The messages without a key. Those with one, and later ones of it, are not sent in this batch: so it ends."""
        for index in later:
            if self.messages[index].key is not None:
                reason = "its key is published one message at a time, the next batch goes on with it"
                self.fail(index, Receipt(Verdict.NOT_SENT, reason))
        return [index for index in later if self.receipts[index] is None]


def _halves(indexes: Sequence[int]) -> list[Sequence[int]]:
    """The second half and the first: of the parts, the last one is sent next."""
    middle = (len(indexes) + 1) // 2
    return [indexes[middle:], indexes[:middle]]
