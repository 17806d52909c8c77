"""Routes whose messages the broker nacks: how long they wait, and when a new connection is tried. Pure.

A nack names neither a queue nor a reason, and is never about the message. A queue is full or has no leader; or this
connection still takes a lost node for the leader, and would nack until that node is back, while a new one works.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds for which a route waits after its first nack, its second, …, until something of it is confirmed."""
EARLY_SECONDS = 0.05
"""A row may be due a little earlier than its route, by another clock."""
RECONNECT_SECONDS, RECONNECT_MOST_SECONDS, QUIET_SECONDS = 0.05, 5.0, 60.0
"""How far apart new connections are opened because of nacks: twice as far each time, until it was quiet for so long."""
REMIND_SECONDS = 60.0
"""How often it is told that a route waits."""
ROUTES = 10_000
"""How many are remembered; where there are more, remembering starts anew."""


@dataclass(slots=True)
class _Refusal:
    nacks: int = 0
    until: float = float("-inf")
    reason: str = ""
    doubts_connection: bool = True


@dataclass(slots=True)
class Refusals:
    """What a publisher knows of the routes that were nacked last, for longer than one connection."""

    clock: Callable[[], float]
    _routes: dict[str, _Refusal] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _news: list[str] = field(default_factory=list)
    _reconnected_at: float = float("-inf")
    _gap: float = RECONNECT_SECONDS

    def __bool__(self) -> bool:
        return bool(self._routes)

    def __contains__(self, route: str) -> bool:
        return route in self._routes

    def paused(self) -> Mapping[str, str]:
        """The routes of which nothing is to be sent now, with their reasons."""
        now = self.clock() + EARLY_SECONDS
        return {route: refusal.reason for route, refusal in self._routes.items() if refusal.until > now}

    def accepted(self, route: str) -> None:
        """A message of this route was confirmed."""
        self._routes.pop(route, None)

    def refused(self, route: str, reason: str, *, doubts_connection: bool) -> None:
        """One was nacked; all of its route wait from now on, and then perhaps leave on a new connection."""
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        refusal = self._routes.setdefault(route, _Refusal())
        if not doubts_connection:  # some of it is taken
            refusal.nacks = 1
        refusal.until = self.clock() + PAUSES[min(refusal.nacks, len(PAUSES) - 1)]
        refusal.nacks += 1
        refusal.reason, refusal.doubts_connection = reason, doubts_connection
        if refusal.nacks > 1:
            self._tell(route, reason)

    def seconds_left(self, route: str) -> float:
        """How long the route waits from now on."""
        refusal = self._routes.get(route)
        return max(refusal.until - self.clock(), 0.0) if refusal is not None else 0.0

    def want_new_connection(self, routes: Iterable[str], opened_at: float) -> bool:
        """Whether one of these routes goes on now, and had better do so on a connection younger than its pause."""
        now = self.clock() + EARLY_SECONDS
        known = (self._routes[route] for route in routes if route in self._routes)
        return any(each.doubts_connection and opened_at < each.until <= now for each in known)

    def news(self) -> list[str]:
        """Why routes wait, for the log: each route once a minute."""
        news, self._news = self._news, []
        return news

    def _tell(self, route: str, reason: str) -> None:
        now = self.clock()
        if now - self._told.get(route, float("-inf")) >= REMIND_SECONDS:
            if len(self._told) >= ROUTES:
                self._told.clear()
            self._told[route] = now
            self._news.append(reason)

    def may_reconnect(self) -> bool:
        """Whether a new connection may be opened because of nacks now; if so, it is counted."""
        now = self.clock()
        since = now - self._reconnected_at
        if since < self._gap:
            return False
        self._gap = RECONNECT_SECONDS if since > QUIET_SECONDS else min(self._gap * 2, RECONNECT_MOST_SECONDS)
        self._reconnected_at = now
        return True
