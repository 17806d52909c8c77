"""The publisher's memory of routes, longer than one batch: confirmed, unroutable and nacked ones. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from outboxkit import defaults
from outboxkit.message import Message

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
    _warned_at: dict[RoutingTarget, float] = field(default_factory=dict)
    _warnings: list[str] = field(default_factory=list)
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
            reason: for receipts, and from the second nack on for the log.
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
        if nacked.nacks > 1:
            self._warn(route, reason)

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

    def take_warnings(self) -> list[str]:
        """The reasons to log now, at most one a minute for each held route. Each is returned once."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def _warn(self, route: RoutingTarget, reason: str) -> None:
        now = self.clock()
        if now - self._warned_at.get(route, float("-inf")) >= defaults.REMIND_SECONDS:
            if len(self._warned_at) >= MAX_ROUTES:
                self._warned_at.clear()
            self._warned_at[route] = now
            self._warnings.append(reason)


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
