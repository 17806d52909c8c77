"""Publishing to one queue and no other: past every binding, through the exchange that has no name."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from outboxkit.brokers import Receipt
from outboxkit.brokers.marks import QUEUE
from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher
from outboxkit.message import Message

DEFAULT_EXCHANGE = ""
"""Every queue is bound to it by its own name, and it cannot be declared (AMQP 0-9-1, section 3.1.2)."""


class QueuePublisher:
    """Publishes to a queue that exists, and whose consumer sees the messages as they were.

    Args:
        url: as for `RabbitPublisher`.
        queue: its name.
        timeout: how long a batch may wait for its confirms, and a connection for its handshake.
        app_id: AMQP's `app_id` property of every message.
    """

    def __init__(
        self, url: str, queue: str, *, timeout: timedelta = timedelta(seconds=10), app_id: str = "outboxkit"
    ) -> None:
        self._queue = queue
        self._publisher = RabbitPublisher(url, exchange=DEFAULT_EXCHANGE, timeout=timeout, app_id=app_id)

    async def connect(self) -> None:
        """Open the connection, unless that is done."""
        await self._publisher.connect()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a batch and await its confirms; a message is unroutable where there is no such queue."""
        return await self._publisher.publish([addressed(message, self._queue) for message in batch])

    async def close(self) -> None:
        """Disconnect; a later `connect` opens anew."""
        await self._publisher.close()


def addressed(message: Message, queue: str) -> Message:
    """The message for this queue alone."""
    return replace(message, headers={**message.headers, QUEUE: queue})
