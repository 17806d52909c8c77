"""One delivery of RabbitMQ: its message, its envelope, and its acks and copies."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from outboxkit.brokers import Malformed, reserved
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import NOT_THE_USERS, Properties
from outboxkit.brokers.rabbitmq.incoming import DeliveryChannel
from outboxkit.brokers.rabbitmq.taps import RawDelivery
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.envelopes import Envelope
from outboxkit.message import Message
from outboxkit.retry import delay_for


class Source(Protocol):
    """The subscriber of a delivery, as far as the delivery needs it."""

    async def copy(
        self, delivery: "RabbitDelivery", delivery_headers: DeliveryHeaders, delay: timedelta | None
    ) -> None:
        """Put a copy into the queue of a retry delay or, without a delay, at the end of the delivery's own queue.

        Raises:
            BrokerUnavailable: the copy may be missing. The broker delivers the message again.
        """

    @property
    def delays(self) -> Sequence[timedelta]:
        """The retry delays, ascending."""


class RabbitDelivery:
    """A delivery, which must be acked on the channel on which it arrived."""

    __slots__ = ("_source", "channel", "delivery_headers", "dropped", "message", "raw", "redeliveries", "topic")

    def __init__(self, raw: RawDelivery, channel: DeliveryChannel, source: Source, *, dropped: bool) -> None:
        properties = raw.properties
        self.raw = raw
        self.dropped = dropped
        self.topic = decode.topic_of(properties, raw.routing_key, dropped=dropped)
        self.delivery_headers = (
            reserved.read_delivery_headers(properties.headers) if properties.headers else reserved.FRESH
        )
        if self.delivery_headers.absent:
            if self.topic == properties.message_type:  # a message without a topic is published with its type
                self.topic = ""
            properties = _without(properties, self.delivery_headers.absent)
        self.message: Message | Malformed = decode.to_message(properties, raw.body, self.topic)
        self.redeliveries = decode.redeliveries(properties, redelivered=raw.redelivered)
        self.redeliveries += self.delivery_headers.redeliveries
        self.channel = channel
        self._source = source

    @property
    def envelope(self) -> Envelope:
        """The delivery as its publisher sent it."""
        properties = _without(self.raw.properties, self.delivery_headers.absent)
        return _envelope(properties, self.raw.body, self.topic)

    async def ack(self) -> None:
        """Basic.Ack, sent together with other acks of the same turn of the event loop."""
        self.channel.ack(self.raw.tag)

    async def requeue(self) -> None:
        """Basic.Nack with requeue."""
        self.channel.nack(self.raw.tag)

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Publish a copy to a retry queue, await its confirm, then ack. A crash in between leaves two, never none."""
        delay = delay_for(self._source.delays, self.delivery_headers.attempt, after)
        delivery_headers = self.delivery_headers.next_attempt(now=datetime.now(UTC), handlers=handlers)
        await self._source.copy(self, delivery_headers, delay)
        await self.ack()
        return delay

    async def requeue_fresh(self, after: timedelta | None = None) -> None:
        """Publish a copy to the same queue, or to a retry queue, await its confirm, then ack."""
        delay = None if after is None else delay_for(self._source.delays, 1, after)
        redeliveries = 0 if after is None else self.redeliveries
        await self._source.copy(self, replace(self.delivery_headers, redeliveries=redeliveries), delay)
        await self.ack()


def _envelope(properties: Properties, body: bytes, topic: str) -> Envelope:
    """The delivery as its publisher sent it, without the headers of the broker and of outboxkit."""
    headers = properties.headers or {}
    return Envelope(
        body=body,
        headers={name: value for name, value in headers.items() if not name.startswith(NOT_THE_USERS)},
        routing_key=topic,
        message_id=properties.message_id or None,
        type=properties.message_type or None,
        content_type=properties.content_type or None,
        content_encoding=properties.content_encoding or None,
        correlation_id=properties.correlation_id or None,
        app_id=properties.app_id or None,
        timestamp=properties.timestamp,
    )


def _without(properties: Properties, absent: Sequence[str]) -> Properties:
    """The properties without the stand-ins for those that the publisher did not send."""
    return replace(
        properties,
        message_id=None if "message_id" in absent else properties.message_id,
        message_type=None if "type" in absent else properties.message_type,
    )
