"""Which messages are published one by one within their key, because the broker may well refuse them. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from outboxkit.brokers.marks import addressed_to
from outboxkit.brokers.rabbitmq.refusals import Refusals
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

    Attributes:
        refusals: the routes that were nacked last.
    """

    clock: Callable[[], float]
    refusals: Refusals = field(init=False)
    _until: float = float("-inf")
    _unroutable: dict[str, float] = field(default_factory=dict)
    _proven: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.clock)

    def unroutable(self, message: Message) -> None:
        """The broker returned this message."""
        self._unroutable[route(message)] = self.clock() + CAREFUL_SECONDS
        self._proven.discard(route(message))

    def nacked(self) -> None:
        """The broker nacked a message, whatever connection it came on."""
        self._until = self.clock() + CAREFUL_SECONDS

    def proven(self, found: str) -> None:
        """A message of this route has reached a queue."""
        if len(self._proven) >= PROVEN_ROUTES:
            self._proven.clear()
        self._proven.add(found)

    def has_proven(self, found: str) -> bool:
        """Whether a message of this route has reached a queue on this connection."""
        return found in self._proven

    def connected(self) -> None:
        """A connection is new: nothing is proven, since a broker that is back may lack its queues."""
        self._proven.clear()

    def doubts(self, routes: set[str]) -> set[str]:
        """Those of the routes whose messages are handled with care now."""
        now = self.clock()
        if self._until > now:
            return routes
        if self._unroutable:
            self._unroutable = {each: until for each, until in self._unroutable.items() if until > now}
        return {each for each in routes if each not in self._proven or each in self._unroutable}
