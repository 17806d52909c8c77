"""A broker inside the process (`memory://`), for the demo and for tests: it routes, confirms and redelivers."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from outboxkit.brokers import CONFIRMED, DEFAULT_LADDER, Malformed, Receipt, Verdict
from outboxkit.message import Message
from outboxkit.retry import rung


@dataclass(slots=True)
class _Queue:
    topics: set[str] = field(default_factory=set)
    ready: deque[tuple[Message | Malformed, int]] = field(default_factory=deque)
    postponed: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Message | Malformed, attempt: int, *, first: bool = False) -> None:
        (self.ready.appendleft if first else self.ready.append)((message, attempt))
        self.arrived.set()

    def put_postponed(self, message: Message | Malformed, attempt: int) -> None:
        self.postponed -= 1
        self.put(message, attempt)


class MemoryBroker:
    """A topic exchange and its queues. It forgets everything with the process."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def queue(self, name: str, topics: Sequence[str]) -> _Queue:
        """The queue of this name, made where it is missing, bound to `topics` (`*` is one word, `#` is any number)."""
        queue = self._queues.setdefault(name, _Queue())
        queue.topics.update(topics)
        return queue

    def route(self, message: Message) -> Receipt:
        """Put the message into every queue that is bound to its routing key."""
        words = message.routing_key.split(".")
        bound = [q for q in self._queues.values() if any(matches(topic.split("."), words) for topic in q.topics)]
        for queue in bound:
            queue.put(message, 1)
        return CONFIRMED if bound else Receipt(Verdict.UNROUTABLE, f"no queue is bound to {message.routing_key!r}")


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a topic pattern accepts a routing key (AMQP 0-9-1, section 3.1.3.3)."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return matches(pattern[1:], words) or (bool(words) and matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


class MemoryPublisher:
    """Publishes into a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def connect(self) -> None:
        """It is always connected."""

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Route each message; one that reaches no queue is unroutable, and those behind it, of its key, are held."""
        failed: set[str] = set()
        receipts: list[Receipt] = []
        for message in batch:
            if message.key in failed:
                receipts.append(Receipt(Verdict.HELD, f"an earlier message of key {message.key!r} has failed"))
                continue
            receipts.append(self._broker.route(message))
            if receipts[-1] is not CONFIRMED and message.key is not None:
                failed.add(message.key)
        return receipts

    async def close(self) -> None:
        """There is nothing to close."""


@dataclass(slots=True, eq=False)
class MemoryDelivery:
    """One arrival from a `MemoryBroker`."""

    message: Message | Malformed
    attempt: int
    _subscriber: "MemorySubscriber"

    async def ack(self) -> None:
        """Forget it."""
        self._subscriber.unacked.discard(self)

    async def release(self) -> None:
        """Put it back at the head of the queue."""
        self._subscriber.unacked.discard(self)
        self._subscriber.queue.put(self.message, self.attempt, first=True)

    async def retry(self, after: timedelta | None = None) -> timedelta:
        """Put it back after a step of the ladder."""
        self._subscriber.unacked.discard(self)
        queue, delay = self._subscriber.queue, rung(self._subscriber.ladder, self.attempt, after)
        queue.postponed += 1
        loop = asyncio.get_running_loop()
        loop.call_later(delay.total_seconds(), queue.put_postponed, self.message, self.attempt + 1)
        return delay


class MemorySubscriber:
    """Receives from one queue of a `MemoryBroker`."""

    def __init__(
        self, broker: MemoryBroker, queue: str, topics: Sequence[str], ladder: Sequence[timedelta] = DEFAULT_LADDER
    ) -> None:
        self.queue = broker.queue(queue, topics)
        self.ladder = ladder
        self.unacked: set[MemoryDelivery] = set()

    async def connect(self) -> None:
        """It is always connected."""

    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        """The head of the queue."""
        while not self.queue.ready:
            if not wait:
                return None
            self.queue.arrived.clear()
            await self.queue.arrived.wait()
        message, attempt = self.queue.ready.popleft()
        delivery = MemoryDelivery(message, attempt, self)
        self.unacked.add(delivery)
        return delivery

    async def postponed(self) -> int:
        """How many messages wait for a later attempt."""
        return self.queue.postponed

    async def close(self) -> None:
        """Give back what was not acked."""
        for delivery in list(self.unacked):
            await delivery.release()
