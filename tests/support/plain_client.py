"""RabbitMQ as any client sees it, through pika: what outboxkit did, read by code that knows nothing of it."""

import secrets
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pika  # type: ignore[import-untyped]
from pika.exceptions import AMQPError, ChannelClosedByBroker  # type: ignore[import-untyped]

QUORUM = {"x-queue-type": "quorum"}


def keyed(key: str) -> dict[str, str]:
    """The headers of a message with a key, as docs/reference/wire.md has them."""
    return {"outboxkit-key": key, "outboxkit-bucket": str(zlib.crc32(key.encode()) % 12)}


@dataclass(frozen=True)
class Received:
    """One message as it came off the wire."""

    body: bytes
    properties: Any
    routing_key: str
    redelivered: bool


class PlainClient:
    """A blocking connection to a broker, with an exchange and queue name of its own."""

    def __init__(self, url: str) -> None:
        suffix = secrets.token_hex(6)
        self.url = url
        self.exchange = f"exchange-{suffix}"
        self.queue = f"queue-{suffix}"
        self._queues = {self.queue}
        self._connection: Any = None

    def declare_exchange(self, kind: str = "topic", *, name: str | None = None) -> None:
        """The exchange; a topic exchange as outboxkit declares it, unless another kind or name is given."""
        self._channel().exchange_declare(name or self.exchange, exchange_type=kind, durable=True)

    def bind(self, *topics: str, queue: str | None = None, arguments: dict[str, Any] | None = None) -> str:
        """A durable queue, bound to the exchange by these topics; its name."""
        name = queue or self.queue
        self._queues.add(name)
        self.declare_exchange()
        channel = self._channel()
        channel.queue_declare(name, durable=True, arguments=QUORUM if arguments is None else arguments)
        for topic in topics:
            channel.queue_bind(name, self.exchange, routing_key=topic)
        return name

    def publish(self, body: bytes, *, queue: str | None = None, topic: str | None = None, **properties: Any) -> None:
        """Publish to the exchange by topic, or straight into a queue; confirmed by the broker."""
        channel = self._channel()
        channel.confirm_delivery()
        exchange, key = (self.exchange, topic) if topic is not None else ("", queue or self.queue)
        channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory=True)

    def publish_written(self, body: bytes, properties: Any, *, topic: str) -> None:
        """Publish to the exchange with properties of a class of its own; confirmed by the broker."""
        channel = self._channel()
        channel.confirm_delivery()
        channel.basic_publish(self.exchange, topic, body, properties, mandatory=True)

    def publish_all(self, messages: Sequence[tuple[bytes, dict[str, Any]]], *, topic: str) -> None:
        """Publish many to the exchange without a confirm for each."""
        channel = self._channel()
        channel.confirm_delivery()  # a quorum queue may lose what it has not confirmed when the channel closes
        for body, properties in messages:
            channel.basic_publish(self.exchange, topic, body, pika.BasicProperties(**properties))
        self.disconnect()

    def take(self, queue: str | None = None) -> Received | None:
        """The head of a queue, acked."""
        channel = self._channel()
        method, properties, body = channel.basic_get(queue or self.queue, auto_ack=True)
        return None if method is None else Received(body, properties, method.routing_key, method.redelivered)

    def take_all(self, queue: str | None = None) -> list[Received]:
        """Everything that is in a queue now, in its order, acked.

        No message more is fetched: a quorum queue puts what it gets back behind all others.
        """
        name, taken = queue or self.queue, list[Received]()
        present = self.depth(name)
        while len(taken) < present:
            channel, last, size = self._channel(), 0, min(present - len(taken), 1000)
            channel.basic_qos(prefetch_count=size)
            for method, properties, body in channel.consume(name, inactivity_timeout=5):
                if method is None:
                    present = 0  # others have taken the rest
                    break
                taken.append(Received(body, properties, method.routing_key, method.redelivered))
                last = method.delivery_tag
                if last == size:
                    break
            channel.cancel()  # before the ack, after which the broker would send more
            if last:
                channel.basic_ack(last, multiple=True)
            channel.close()
        return taken

    def depth(self, queue: str | None = None) -> int:
        """How many messages are ready in a queue."""
        return int(self._declared(queue).message_count)

    def has_queue(self, queue: str | None = None) -> bool:
        """Whether the queue is there."""
        try:
            self.depth(queue)
        except ChannelClosedByBroker:
            return False
        return True

    def has_exchange(self, exchange: str) -> bool:
        """Whether an exchange is there."""
        try:
            self._channel().exchange_declare(exchange, passive=True)
        except ChannelClosedByBroker:
            return False
        return True

    def consumers(self, queue: str | None = None) -> int:
        """How many consumers a queue has."""
        return int(self._declared(queue).consumer_count)

    def unbind(self, topic: str, queue: str | None = None) -> None:
        """Take a binding away."""
        self._channel().queue_unbind(queue or self.queue, self.exchange, routing_key=topic)

    def delete_exchange(self, name: str | None = None) -> None:
        """Delete the exchange, or another one."""
        self._channel().exchange_delete(name or self.exchange)

    def delete_queue(self, queue: str | None = None) -> None:
        """Delete a queue with what is in it."""
        self._channel().queue_delete(queue or self.queue)

    def disconnect(self) -> None:
        """Close the connection; the next call opens another."""
        gone, self._connection = self._connection, None
        if gone is not None:
            with suppress(AMQPError):
                gone.close()

    def own(self, name: str) -> str:
        """Note a queue that others declare, so that it is deleted at the end; its name."""
        self._queues.add(name)
        return name

    def clean_up(self, steps: Sequence[str] = ()) -> None:
        """Delete the exchange, the queues of the tests and those that a consumer declares beside them."""
        beside = {f"{name}.{suffix}" for name in self._queues for suffix in ("dead", *(f"retry.{s}" for s in steps))}
        beside |= {f"outboxkit.delay.{step}" for step in steps}
        with suppress(AMQPError):
            channel = self._channel()
            for name in self._queues | beside:
                channel.queue_delete(name)
            channel.exchange_delete(self.exchange)
        self.disconnect()

    def _declared(self, queue: str | None) -> Any:
        channel = self._channel()
        declared = channel.queue_declare(queue or self.queue, passive=True)
        channel.close()  # a connection has 2047 at once, and a test may ask for minutes
        return declared.method

    def _channel(self) -> Any:
        """A new channel for each use: one that the broker closed because of an error is of no use any more."""
        if self._connection is None or self._connection.is_closed:
            parameters = pika.URLParameters(self.url)
            parameters.heartbeat = 0
            self._connection = pika.BlockingConnection(parameters)
        return self._connection.channel()
