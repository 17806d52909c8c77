"""A broker inside the process (`memory://`), for the demo and for tests: it routes, confirms and redelivers."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from outboxkit.brokers import CONFIRMED, DEFAULT_LADDER, Malformed, Receipt, Verdict, reserved
from outboxkit.brokers.reserved import FRESH, DeliveryHeaders
from outboxkit.message import Message
from outboxkit.retry import delay_for


@dataclass(frozen=True, slots=True)
class _Kept:
    message: Message | Malformed
    marks: DeliveryHeaders
    place: int
    returned: int = 0


@dataclass(slots=True)
class _Queue:
    topics: set[str] = field(default_factory=set)
    ready: deque[_Kept] = field(default_factory=deque)
    postponed: int = 0
    count: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Message | Malformed, marked: DeliveryHeaders = FRESH) -> None:
        """Append the message, with these marks."""
        self.count += 1
        self.ready.append(_Kept(message, marked, self.count))
        self.arrived.set()

    def put_back(self, kept: _Kept) -> None:
        """Put what comes back where it was."""
        back = replace(kept, returned=kept.returned + 1)
        self.ready = deque(sorted([back, *self.ready], key=lambda one: one.place))
        self.arrived.set()

    def put_postponed(self, message: Message | Malformed, marked: DeliveryHeaders) -> None:
        """Append what has waited for its next attempt."""
        self.postponed -= 1
        self.put(message, marked)


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
        """Put the message into the queue that it is addressed to, or into all that are bound to its routing key."""
        wanted, marked = reserved.addressed_to(message.headers), reserved.read(message.headers)
        sent = replace(message, headers=reserved.without(message.headers))
        if wanted is not None:
            bound = [self._queues[wanted]] if wanted in self._queues else []
            reason = f"there is no queue {wanted!r}"
        else:
            words = message.routing_key.split(".")
            bound = [q for q in self._queues.values() if any(matches(topic.split("."), words) for topic in q.topics)]
            reason = f"no queue is bound to {message.routing_key!r}"
        for queue in bound:
            queue.put(sent, marked)
        return CONFIRMED if bound else Receipt(Verdict.UNROUTABLE, reason)


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a topic pattern accepts a routing key (AMQP 0-9-1, section 3.1.3.3)."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return matches(pattern[1:], words) or (bool(words) and matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


class MemoryPublisher:
    """Publishes into a `MemoryBroker`."""

    address = "memory://"

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
                receipts.append(Receipt(Verdict.NOT_SENT, f"an earlier message of key {message.key!r} has failed"))
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

    _kept: _Kept
    _subscriber: "MemorySubscriber"

    @property
    def message(self) -> Message | Malformed:
        """What arrived."""
        return self._kept.message

    @property
    def marks(self) -> DeliveryHeaders:
        """What was noted on it."""
        return self._kept.marks

    @property
    def returned(self) -> int:
        """How often it was put back."""
        return self._kept.returned

    @property
    def dropped(self) -> bool:
        """Never: this broker has no limits of its own."""
        return False

    async def ack(self) -> None:
        """Forget it."""
        self._subscriber.unacked.pop(self, None)

    async def requeue(self) -> None:
        """Put it back at the head of the queue."""
        self._subscriber.unacked.pop(self, None)
        self._subscriber.queue.put_back(self._kept)

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Put it back after a step of the ladder."""
        self._subscriber.unacked.pop(self, None)
        queue, delay = self._subscriber.queue, delay_for(self._subscriber.ladder, self.marks.attempt, after)
        queue.postponed += 1
        marked = self.marks.next_attempt(now=datetime.now(UTC), handlers=handlers)
        asyncio.get_running_loop().call_later(delay.total_seconds(), queue.put_postponed, self.message, marked)
        return delay

    async def requeue_fresh(self) -> None:
        """Append it to the queue as if it had arrived there now."""
        self._subscriber.unacked.pop(self, None)
        self._subscriber.queue.put(self.message, self.marks)


class MemorySubscriber:
    """Receives from one queue of a `MemoryBroker`."""

    address = "memory://"

    def __init__(
        self, broker: MemoryBroker, queue: str, topics: Sequence[str], ladder: Sequence[timedelta] = DEFAULT_LADDER
    ) -> None:
        self.queue = broker.queue(queue, topics)
        self.ladder = ladder
        self.unacked: dict[MemoryDelivery, None] = {}
        self._ceased = False

    async def connect(self) -> None:
        """It is always connected."""

    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        """The head of the queue."""
        while self._ceased or not self.queue.ready:
            if not wait:
                return None
            self.queue.arrived.clear()
            await self.queue.arrived.wait()
        delivery = MemoryDelivery(self.queue.ready.popleft(), self)
        self.unacked[delivery] = None
        return delivery

    async def postponed(self) -> int:
        """How many messages wait for a later attempt."""
        return self.queue.postponed

    async def stop_receiving(self) -> None:
        """From now on its queue seems empty."""
        self._ceased = True

    async def close(self) -> None:
        """Give back what was not acked."""
        self._ceased = False
        for delivery in reversed(list(self.unacked)):
            await delivery.requeue()
