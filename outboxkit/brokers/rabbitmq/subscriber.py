"""The consumer's side of RabbitMQ: a quorum queue, its retry steps, and deliveries with manual acks."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import aio_pika
import aiormq
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.common import FieldTable, FieldValue

from outboxkit.brokers import DEFAULT_LADDER, Malformed
from outboxkit.brokers.rabbitmq import connection, wire
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.message import Message
from outboxkit.retry import rung


def retry_queue(queue: str, step: timedelta) -> str:
    """The name of the queue in which messages of `queue` wait for this long, such as `billing.retry.10s`."""
    milliseconds = round(step.total_seconds() * 1000)
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{queue}.retry.{milliseconds // size}{unit}"
    return f"{queue}.retry.{milliseconds}ms"


def quorum(dead_letters_to: str, **more: FieldValue) -> FieldTable:
    """Arguments of a durable quorum queue that hands what it drops, by its own limits, to another queue, safely.

    At-least-once dead lettering keeps a message until the other queue has confirmed it, and needs `reject-publish`.
    """
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_letters_to,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        **more,
    }


@dataclass(slots=True, eq=False)
class RabbitDelivery:
    """One arrival from RabbitMQ, on the channel that it must be settled on."""

    message: Message | Malformed
    attempt: int
    _arrived: DeliveredMessage
    _channel: aiormq.abc.AbstractChannel
    _subscriber: "RabbitSubscriber"

    async def ack(self) -> None:
        """Basic.Ack."""
        with connection.converted("cannot ack"):
            await self._channel.basic_ack(self._tag, wait=False)

    async def release(self) -> None:
        """Basic.Nack with requeue."""
        with connection.converted("cannot release"):
            await self._channel.basic_nack(self._tag, requeue=True, wait=False)

    async def retry(self, after: timedelta | None = None) -> timedelta:
        """Publish a copy to a retry step, confirmed, and only then ack: a crash in between leaves two, never none."""
        step = rung(self._subscriber.ladder, self.attempt, after)
        await self._subscriber.postpone(self._arrived, step)
        await self.ack()
        return step

    @property
    def _tag(self) -> int:
        return self._arrived.delivery_tag or 0


class RabbitSubscriber:
    """Receives from one durable quorum queue, bound to the exchange by message types.

    Beside queue `Q` it declares `Q.retry.<step>` for each step of the ladder, in which messages wait for their next
    attempt, and `Q.dead`, which receives what the broker would drop by a limit of its own.

    Args:
        url: `amqp://` or `amqps://`.
        queue: its name.
        exchange: the topic exchange, declared where it is missing.
        topics: routing keys to bind, usually the handled event types.
        prefetch: how many deliveries may be unacked at once.
        ladder: the retry steps, ascending.
        timeout: how long the broker may take for each answer.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        exchange: str,
        topics: Sequence[str],
        prefetch: int = 64,
        ladder: Sequence[timedelta] = DEFAULT_LADDER,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._url = url
        self._queue = queue
        self._exchange = exchange
        self._topics = topics
        self._prefetch = prefetch
        self.ladder = ladder
        self._timeout = timeout.total_seconds()
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: aiormq.abc.AbstractChannel | None = None
        self._retries: aiormq.abc.AbstractChannel | None = None
        self._lost: str | None = "not connected"
        self._consuming = False
        self._arrived: asyncio.Queue[RabbitDelivery | None] = asyncio.Queue()

    async def connect(self) -> None:
        """Open the connection and declare everything, unless that is done."""
        if self._lost is None:
            return
        await self.close()
        self._arrived, self._consuming, self._lost = asyncio.Queue(), False, None

        def on_lost(reason: str, period: asyncio.Queue[RabbitDelivery | None] = self._arrived) -> None:
            if period is self._arrived:  # else it is a late word about an earlier connection
                self._on_lost(reason)

        async def on_cancelled(_: Basic.Cancel) -> None:
            on_lost("the broker cancelled the consumer: was the queue deleted?")

        try:
            name = f"outboxkit consumer {self._queue}"
            self._connection = await connection.connect(self._url, name=name, timeout=self._timeout, on_lost=on_lost)
            channel, self._channel = await connection.open_channel(self._connection, on_lost=on_lost)
            _, self._retries = await connection.open_channel(self._connection, on_lost=on_lost)
            self._channel.on_consumer_cancel_callbacks.add(on_cancelled)
            await self._declare(channel)
        except BaseException:
            await self.close()
            raise

    async def receive(self, *, wait: bool = True) -> RabbitDelivery | None:
        """The next delivery: pushed by the broker, or asked for with Basic.Get where `wait` is False."""
        if not wait:
            return await self._get()
        if not self._consuming:
            await self._consume()
        delivery = await self._arrived.get()
        if delivery is None:
            self._arrived.put_nowait(None)  # for whoever else waits here
            raise BrokerUnavailable(f"the connection to the broker was lost: {self._lost}")
        return delivery

    async def postponed(self) -> int:
        """The number of messages in all retry steps."""
        channel, total = self._open_channel(), 0
        for step in self.ladder:
            with connection.converted("cannot count what waits for a retry"):
                found = await channel.queue_declare(retry_queue(self._queue, step), passive=True, timeout=self._timeout)
                total += found.message_count or 0
        return total

    async def postpone(self, arrived: DeliveredMessage, step: timedelta) -> None:
        """Put a copy of the delivery, one attempt older, into a retry step; returns once the broker has it."""
        if self._retries is None:
            raise BrokerUnavailable("the connection to the broker is closed")
        try:
            with connection.converted("cannot postpone"):
                await self._retries.basic_publish(
                    arrived.body,
                    exchange="",
                    routing_key=retry_queue(self._queue, step),
                    properties=wire.as_next_attempt(arrived),
                    mandatory=True,
                    timeout=self._timeout,
                )
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, DeliveryError):  # the step's queue is gone or full: declare it again
                self._on_lost(str(error))
            raise

    async def close(self) -> None:
        """Disconnect; the broker takes back what was not acked."""
        gone, self._connection, self._channel, self._retries = self._connection, None, None, None
        self._lost = self._lost or "closed"
        await connection.close(gone)

    async def _declare(self, channel: aio_pika.abc.AbstractChannel) -> None:
        dead, limit = f"{self._queue}.dead", self._timeout
        try:
            with connection.converted(f"cannot declare queue {self._queue!r}"):
                await channel.set_qos(prefetch_count=self._prefetch, timeout=limit)
                exchange = await channel.declare_exchange(
                    self._exchange, aio_pika.ExchangeType.TOPIC, durable=True, timeout=limit
                )
                await channel.declare_queue(dead, durable=True, arguments={"x-queue-type": "quorum"}, timeout=limit)
                queue = await channel.declare_queue(self._queue, durable=True, arguments=quorum(dead), timeout=limit)
                for topic in self._topics:
                    await queue.bind(exchange, routing_key=topic, timeout=limit)
                for step in self.ladder:
                    ttl = round(step.total_seconds() * 1000)
                    arguments = quorum(self._queue, **{"x-message-ttl": ttl})
                    await channel.declare_queue(
                        retry_queue(self._queue, step), durable=True, arguments=arguments, timeout=limit
                    )
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, ChannelPreconditionFailed):
                raise ConfigurationError(
                    f"the broker has queue {self._queue!r}, or one beside it, with other arguments: {error.__cause__}. "
                    "Choose another OUTBOXKIT_QUEUE, or empty and delete that queue"
                ) from error
            raise

    async def _consume(self) -> None:
        self._consuming = True
        try:
            with connection.converted(f"cannot consume from {self._queue!r}"):
                await self._open_channel().basic_consume(self._queue, self._on_arrival, timeout=self._timeout)
        except BrokerUnavailable as error:
            self._on_lost(str(error))
            raise

    async def _get(self) -> RabbitDelivery | None:
        with connection.converted(f"cannot read from {self._queue!r}"):
            arrived = await self._open_channel().basic_get(self._queue, timeout=self._timeout)
        return None if isinstance(arrived.delivery, Basic.GetEmpty) else self._delivery(arrived)

    def _open_channel(self) -> aiormq.abc.AbstractChannel:
        if self._channel is None or self._lost is not None:
            raise BrokerUnavailable(f"the connection to the broker is closed: {self._lost}")
        return self._channel

    def _delivery(self, arrived: DeliveredMessage) -> RabbitDelivery:
        channel = self._open_channel()
        return RabbitDelivery(wire.to_message(arrived), wire.attempt_of(arrived), arrived, channel, self)

    async def _on_arrival(self, arrived: DeliveredMessage) -> None:
        if self._lost is None:
            self._arrived.put_nowait(self._delivery(arrived))

    def _on_lost(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._arrived.put_nowait(None)
