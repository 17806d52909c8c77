"""What the cases of the suite are made of: a broker under test, and a publisher and a subscriber on it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, Self

from outboxkit import ids
from outboxkit.brokers import Delivery, Publisher, Subscriber, Verdict
from outboxkit.message import Message

LADDER = (timedelta(milliseconds=100), timedelta(milliseconds=300))
PATIENCE = 10.0
"""Seconds after which what should have arrived is taken as lost."""


class BrokerUnderTest(Protocol):
    """How the suite makes its publishers and subscribers: any number of them, on one broker and one exchange."""

    def publisher(self) -> Publisher:
        """A publisher, not yet connected."""

    def subscriber(self, queue: str, topics: Sequence[str], ladder: Sequence[timedelta]) -> Subscriber:
        """A subscriber of this queue, not yet connected."""


class Route:
    """One publisher, and one queue that is bound to a message type of its own."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self.type = f"Conformance-{ids.new()}"
        self.queue = f"conformance-{ids.new()}"
        self.broker = broker
        self.publisher = broker.publisher()
        self.subscriber = self.another_subscriber()

    def another_subscriber(self) -> Subscriber:
        """Another subscriber of the same queue, not yet connected."""
        return self.broker.subscriber(self.queue, [self.type], LADDER)

    def message(self, text: str = "1", **more: object) -> Message:
        """A new message of this route's type, with this text as its payload."""
        given = {"id": ids.new(), "type": self.type, "payload": text.encode(), **more}
        return Message(**given)  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        await self.subscriber.connect()
        await self.publisher.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()
        await self.subscriber.close()

    async def send(self, *messages: Message) -> list[Verdict]:
        """Publish in one batch; what the broker said of each."""
        return [receipt.verdict for receipt in await self.publisher.publish(messages)]

    async def next(self, subscriber: Subscriber | None = None) -> Delivery:
        """The next delivery; TimeoutError where none comes."""
        delivery = await asyncio.wait_for((subscriber or self.subscriber).receive(), PATIENCE)
        assert delivery is not None, "receive() waits, so it has no reason to return None"
        return delivery
