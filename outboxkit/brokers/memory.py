"""In-process broker (`memory://`) for the demo and for tests: it routes, confirms and redelivers."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from outboxkit import defaults
from outboxkit.brokers import CONFIRMED, KeyGate, Publisher, Receipt, Subscriber, Verdict, arriving
from outboxkit.codec.envelopes.envelope import Envelope, Malformed
from outboxkit.codec.headers import FRESH, DeliveryHeaders, read_delivery_headers, without_own
from outboxkit.codec.rows import aliases_of
from outboxkit.message import Message
from outboxkit.retry import delay_for


@dataclass(frozen=True, slots=True)
class _Entry:
    message: Message | Malformed
    delivery_headers: DeliveryHeaders
    number: int
    redeliveries: int = 0


@dataclass(slots=True)
class _Queue:
    topics: set[str] = field(default_factory=set)
    ready: deque[_Entry] = field(default_factory=deque)
    waiting: int = 0
    count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Message | Malformed, delivery_headers: DeliveryHeaders = FRESH) -> None:
        """Append the message."""
        self.count += 1
        self.ready.append(_Entry(message, delivery_headers, self.count))
        self.changed.set()

    def requeue(self, entry: _Entry) -> None:
        """Put the entry back into the queue, in front of those that arrived later."""
        redelivered = replace(entry, redeliveries=entry.redeliveries + 1)
        self.ready = deque(sorted([redelivered, *self.ready], key=lambda each: each.number))
        self.changed.set()

    def put_again(self, message: Message | Malformed, delivery_headers: DeliveryHeaders) -> None:
        """Append a message that has waited for its next attempt."""
        self.waiting -= 1
        self.put(message, delivery_headers)


class MemoryBroker:
    """A topic exchange and its queues. They end with the process."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def queue(self, name: str, topics: Sequence[str]) -> _Queue:
        """The queue of this name, created if missing, bound to `topics` (`*`: one word, `#`: any number of them)."""
        queue = self._queues.setdefault(name, _Queue())
        queue.topics.update(topics)
        return queue

    def route(self, message: Message) -> Receipt:
        """Put the message into the queue that it is addressed to, or into all that are bound to its routing key."""
        name, delivery_headers = message.queue, read_delivery_headers(message.headers)
        if isinstance(sent := arriving(message), Receipt):
            return sent
        if name is not None:
            bound = [self._queues[name]] if name in self._queues else []
            reason = f"there is no queue {name!r}"
        else:
            keys = [key.split(".") for key in (message.routing_key, *aliases_of(message))]
            bound = [
                queue
                for queue in self._queues.values()
                if any(matches(topic.split("."), words) for topic in queue.topics for words in keys)
            ]
            reason = f"no queue is bound to {message.routing_key!r}"
        for queue in bound:
            queue.put(sent, delivery_headers)
        return CONFIRMED if bound else Receipt(Verdict.UNROUTABLE, reason)


def _envelope(message: Message) -> Envelope:
    """The message as its publisher sent it."""
    return Envelope(
        body=message.payload,
        headers=without_own(message.headers),
        routing_key=message.routing_key,
        message_id=message.id,
        type=message.type,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        correlation_id=message.correlation_id,
        timestamp=message.created_at,
    )


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a topic pattern accepts a routing key (AMQP 0-9-1, section 3.1.3.3)."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return matches(pattern[1:], words) or (bool(words) and matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


class MemoryPublisher(Publisher):
    """A publisher to a `MemoryBroker`."""

    address = "memory://"

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def connect(self) -> None:
        """Do nothing: it is always connected."""

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Route each message. One that reaches no queue is unroutable, and later ones of its key are not sent."""
        gate = KeyGate()
        receipts: list[Receipt] = []
        for index, message in enumerate(batch):
            receipts.append(gate.refuse(index, message) or self._broker.route(message))
            if receipts[-1] is not CONFIRMED:
                gate.fail(index, message)
        return receipts

    async def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True, eq=False)
class MemoryDelivery:
    """A delivery of a `MemoryBroker`."""

    _entry: _Entry
    _subscriber: "MemorySubscriber"

    @property
    def message(self) -> Message | Malformed:
        """The message."""
        return self._entry.message

    @property
    def envelope(self) -> Envelope:
        """The message as its publisher sent it."""
        return self.message if isinstance(self.message, Malformed) else _envelope(self.message)

    @property
    def delivery_headers(self) -> DeliveryHeaders:
        """The reserved headers."""
        return self._entry.delivery_headers

    @property
    def redeliveries(self) -> int:
        """The number of times the message was requeued."""
        return self._entry.redeliveries

    @property
    def dropped(self) -> bool:
        """Always False: this broker has no limits of its own."""
        return False

    async def ack(self) -> None:
        """Forget the message."""
        self._subscriber.unacked.pop(self, None)

    async def requeue(self) -> None:
        """Put the message back into the queue, in front of those that arrived later."""
        self._subscriber.unacked.pop(self, None)
        self._subscriber.queue.requeue(self._entry)

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Append the message to the queue again after one of the retry delays."""
        self._subscriber.unacked.pop(self, None)
        delay = delay_for(self._subscriber.delays, self.delivery_headers.attempt, after)
        delivery_headers = self.delivery_headers.next_attempt(now=datetime.now(UTC), handlers=handlers)
        self._subscriber.postpone(self, delay, delivery_headers)
        return delay

    async def requeue_fresh(self) -> None:
        """Append the message to the queue, with 0 redeliveries."""
        self._subscriber.unacked.pop(self, None)
        self._subscriber.queue.put(self.message, self.delivery_headers)


class MemorySubscriber(Subscriber):
    """A subscriber to one queue of a `MemoryBroker`."""

    address = "memory://"

    def __init__(
        self,
        broker: MemoryBroker,
        queue: str,
        topics: Sequence[str],
        delays: Sequence[timedelta] = defaults.RETRY_DELAYS,
    ) -> None:
        self.queue = broker.queue(queue, topics)
        self.delays = delays
        self.unacked: dict[MemoryDelivery, None] = {}
        self._is_stopped = False

    async def connect(self) -> None:
        """Do nothing: it is always connected."""

    async def start_receiving(self) -> None:
        """Do nothing: nothing is pushed."""

    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        """The first message of the queue; waits for one unless `wait` is False."""
        while self._is_stopped or not self.queue.ready:
            if not wait:
                return None
            self.queue.changed.clear()
            await self.queue.changed.wait()
        delivery = MemoryDelivery(self.queue.ready.popleft(), self)
        self.unacked[delivery] = None
        return delivery

    def postpone(self, delivery: MemoryDelivery, delay: timedelta, delivery_headers: DeliveryHeaders) -> None:
        """Append the message of a delivery to the queue after this delay."""
        self.queue.waiting += 1
        loop = asyncio.get_running_loop()
        loop.call_later(delay.total_seconds(), self.queue.put_again, delivery.message, delivery_headers)

    async def waiting_retries(self) -> int:
        """The number of messages that wait for their next attempt."""
        return self.queue.waiting

    async def stop_receiving(self) -> None:
        """Receive no more deliveries: the queue seems empty from now on."""
        self._is_stopped = True

    async def close(self) -> None:
        """Requeue the unacked messages."""
        self._is_stopped = False
        for delivery in reversed(list(self.unacked)):
            await delivery.requeue()
