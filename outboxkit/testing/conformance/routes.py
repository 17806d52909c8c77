"""One publisher, and the messages of it that arrive: the parts of the cases, for a broker and for a destination."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, Self

from outboxkit import ids
from outboxkit.brokers import Delivery, Publisher, Subscriber, Verdict
from outboxkit.message import Message

DELAYS = (timedelta(milliseconds=100), timedelta(milliseconds=300))
PATIENCE = 10.0
"""Seconds after which a message that has not arrived is taken as lost."""


class BrokerUnderTest(Protocol):
    """A factory of publishers and subscribers for the suite: any number of them, on one broker and one exchange."""

    def publisher(self) -> Publisher:
        """A publisher, not yet connected."""

    def subscriber(self, queue: str, topics: Sequence[str], delays: Sequence[timedelta]) -> Subscriber:
        """A subscriber of this queue, not yet connected."""


class DestinationUnderTest(Protocol):
    """A factory of publishers to one destination, and the destination itself, as the suite sees it."""

    def publisher(self) -> Publisher:
        """A publisher, not yet connected."""

    def refuse(self, id: str) -> None:  # noqa: A002 - the message's
        """From now on the destination refuses messages of this id."""

    def arrived(self) -> Sequence[Message]:
        """The messages that the destination has accepted so far, in their order."""


class Line:
    """A publisher to a destination, and a message type of its own."""

    failure = Verdict.REJECTED

    def __init__(self, target: Any) -> None:
        self.type = f"Conformance-{ids.new()}"
        self.target = target
        self.publisher: Publisher = target.publisher()

    async def __aenter__(self) -> Self:
        await self.publisher.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()

    def message(self, text: str = "1", **more: Any) -> Message:
        """A new message of this type, with this text as its payload."""
        return Message(**{"id": ids.new(), "type": self.type, "payload": text.encode(), **more})

    def failing(self, **more: Any) -> Message:
        """A message that fails: the destination refuses it, or it reaches no queue."""
        message = self.message(**more)
        self.target.refuse(message.id)
        return message

    async def send(self, *messages: Message) -> list[Verdict]:
        """Publish in one batch. Returns the verdicts."""
        return [receipt.verdict for receipt in await self.publisher.publish(messages)]

    async def arrived(self, count: int) -> list[Message]:
        """The messages that have arrived: so many, or more."""
        messages = [message for message in self.target.arrived() if message.type == self.type]
        assert len(messages) >= count, f"{len(messages)} messages have arrived, and not {count}"
        return messages


class Route(Line):
    """A publisher to a broker, and one queue that is bound to a message type of its own."""

    failure = Verdict.UNROUTABLE

    def __init__(self, target: BrokerUnderTest) -> None:
        super().__init__(target)
        self.queue = f"conformance-{ids.new()}"
        self.subscriber = self.another_subscriber()

    def another_subscriber(self, queue: str | None = None) -> Subscriber:
        """Another subscriber of the same queue, or of another one of the type, not yet connected."""
        subscriber: Subscriber = self.target.subscriber(queue or self.queue, [self.type], DELAYS)
        return subscriber

    def failing(self, **more: Any) -> Message:
        """A message that reaches no queue."""
        return self.message(topic=f"nobody-{ids.new()}", **more)

    async def __aenter__(self) -> Self:
        await self.subscriber.connect()
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self.subscriber.close()

    async def next(self, subscriber: Subscriber | None = None) -> Delivery:
        """The next delivery. Raises TimeoutError if none comes."""
        delivery = await asyncio.wait_for((subscriber or self.subscriber).receive(), PATIENCE)
        assert delivery is not None, "receive() waits, so it has no reason to return None"
        return delivery

    async def arrived(self, count: int) -> list[Message]:
        """The next messages of the queue, acked."""
        messages = []
        for _ in range(count):
            delivery = await self.next()
            assert isinstance(delivery.message, Message)
            messages.append(delivery.message)
            await delivery.ack()
        return messages


def line_to(target: BrokerUnderTest | DestinationUnderTest) -> Line:
    """A new line to a destination, or a route through a broker."""
    return Line(target) if hasattr(target, "arrived") else Route(target)
