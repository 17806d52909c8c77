"""Which messages are published one by one within their key, because the broker may well refuse them. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from outboxkit.brokers import Verdict
from outboxkit.brokers.marks import addressed_to
from outboxkit.message import Message

CAREFUL_SECONDS = 60.0
"""How long one by one after the broker refused a message."""
PROVEN_ROUTES = 10_000
"""Routing keys that are remembered as reaching a queue; where there are more, each is proven anew."""


def route(message: Message) -> str:
    """What decides which queues a message reaches: its routing key, or the queue that it is addressed to."""
    queue = addressed_to(message.headers) if message.headers else None
    return message.routing_key if queue is None else f"\0{queue}"  # no routing key holds a NUL


@dataclass(slots=True)
class Caution:
    """Of which messages the next one of their key waits for the answer, because they may well be refused.

    Those of a routing key that no confirm on this connection has proven to reach a queue, or that reached none lately;
    and all, for as long after a nack, which names no queue.
    """

    clock: Callable[[], float]
    _until: float = float("-inf")
    _refused: dict[str, float] = field(default_factory=dict)
    _proven: set[str] = field(default_factory=set)

    def refused(self, message: Message, verdict: Verdict) -> None:
        """The broker did not take this message."""
        until = self.clock() + CAREFUL_SECONDS
        if verdict is Verdict.UNROUTABLE:
            self._refused[route(message)] = until
            self._proven.discard(route(message))
        else:
            self._until = until

    def proven(self, found: str) -> None:
        """A message of this route has reached a queue."""
        if len(self._proven) >= PROVEN_ROUTES:
            self._proven.clear()
        self._proven.add(found)

    def connected(self) -> None:
        """A connection is new: nothing is proven, since a broker that is back may lack its queues."""
        self._proven.clear()

    def doubts(self, routes: set[str]) -> set[str]:
        """Those of the routes whose messages are handled with care now."""
        now = self.clock()
        if self._until > now:
            return routes
        if self._refused:
            self._refused = {each: until for each, until in self._refused.items() if until > now}
        return {each for each in routes if each not in self._proven or each in self._refused}
