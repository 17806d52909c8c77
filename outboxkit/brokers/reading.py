"""Subscriber whose deliveries are read by readers of foreign envelopes, and by the broker's own reader last."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from outboxkit.brokers import Delivery, Malformed, Subscriber
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.codec import LARGE
from outboxkit.compression import INFLATED_LIMIT, deflate
from outboxkit.envelopes import Envelope, Reader
from outboxkit.envelopes.envelope import read_with
from outboxkit.errors import DecodeError
from outboxkit.failures import printable
from outboxkit.message import Message


class ReadDelivery:
    """A delivery with the message that a reader has found in it.

    Attributes:
        message: the message; `Malformed` if no reader knows the envelope, or one cannot read it.
        delivery_headers, redeliveries, dropped: the delivery's own.
    """

    __slots__ = ("_delivery", "delivery_headers", "dropped", "message", "redeliveries")

    def __init__(self, delivery: Delivery, readers: tuple[Reader, ...], envelope: Envelope) -> None:
        self._delivery = delivery
        self.delivery_headers: DeliveryHeaders = delivery.delivery_headers
        self.redeliveries, self.dropped = delivery.redeliveries, delivery.dropped
        self.message: Message | Malformed = _message(delivery, readers, envelope)

    @property
    def envelope(self) -> Envelope:
        """The delivery as its publisher sent it."""
        return self._delivery.envelope

    async def ack(self) -> None:
        """Tell the broker to forget the message."""
        await self._delivery.ack()

    async def requeue(self) -> None:
        """Put the message back unhandled."""
        await self._delivery.requeue()

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Redeliver the message later, in the envelope in which it came."""
        return await self._delivery.retry(after, handlers=handlers)

    async def requeue_fresh(self, after: timedelta | None = None) -> None:
        """Put a copy at the end of the queue, now or later, in the envelope in which it came."""
        await self._delivery.requeue_fresh(after)


class ReadingSubscriber(Subscriber):
    """A subscriber that reads the deliveries of another one with readers of foreign envelopes.

    Args:
        subscriber: the subscriber of the broker.
        readers: asked in this order. An envelope that none of them knows is read as outboxkit's.
        limit: the maximum bytes of an envelope once it is inflated.
    """

    def __init__(self, subscriber: Subscriber, readers: Sequence[Reader], *, limit: int = INFLATED_LIMIT) -> None:
        self._subscriber = subscriber
        self._readers, self._limit = tuple(readers), limit
        self.exchange, self.delays = subscriber.exchange, subscriber.delays

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self._subscriber.address

    @property
    def trouble(self) -> str | None:
        """The reason for which the broker's subscriber cannot be used now."""
        return self._subscriber.trouble

    async def connect(self) -> None:
        """Declare the queue and its bindings, and make the subscriber ready."""
        await self._subscriber.connect()

    async def start_receiving(self) -> None:
        """Consume the queue."""
        await self._subscriber.start_receiving()

    async def receive(self, *, wait: bool = True) -> Delivery | None:
        """The next delivery, read. With `wait=False` it is None if the queue is empty."""
        delivery = await self._subscriber.receive(wait=wait)
        if delivery is None:
            return None
        envelope = replace(delivery.envelope, limit=self._limit)
        return ReadDelivery(delivery, self._readers, envelope)

    async def stop_receiving(self) -> None:
        """Receive no more deliveries."""
        await self._subscriber.stop_receiving()

    async def postponed(self) -> int:
        """The number of messages that this subscriber has put off and not received again."""
        return await self._subscriber.postponed()

    async def close(self) -> None:
        """Disconnect."""
        await self._subscriber.close()


def _message(delivery: Delivery, readers: tuple[Reader, ...], envelope: Envelope) -> Message | Malformed:
    try:
        message = read_with(readers, envelope)
    except DecodeError as error:
        return _undecodable(envelope, printable(str(error)))
    return delivery.message if message is None else _as_small_as_it_came(message, envelope)


def _as_small_as_it_came(message: Message, envelope: Envelope) -> Message:
    """The message. A large payload that was inflated is compressed again: it may wait for its handler for long."""
    payload = message.payload
    if len(payload) <= max(LARGE, 2 * len(envelope.body)):
        return message
    return replace(message, payload=deflate(payload, "gzip"), content_encoding="gzip")


def _undecodable(envelope: Envelope, reason: str) -> Malformed:
    return Malformed(
        reason=reason,
        payload=envelope.body,
        message_id=envelope.message_id,
        type=envelope.type,
        headers=envelope.headers,
        content_type=envelope.content_type,
        correlation_id=envelope.correlation_id,
        content_encoding=envelope.content_encoding,
        topic=envelope.routing_key,
        created_at=envelope.timestamp,
        kind="undecodable",
    )
