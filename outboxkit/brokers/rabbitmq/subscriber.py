"""The consumer's side of RabbitMQ: a quorum queue, its retry queues, and deliveries with manual acks."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import aio_pika
import aiormq
from pamqp import commands

from outboxkit import urls
from outboxkit.brokers import DEFAULT_LADDER, Malformed, reserved
from outboxkit.brokers.rabbitmq import connection, decode
from outboxkit.brokers.rabbitmq.incoming import DeliveryChannel
from outboxkit.brokers.rabbitmq.retries import RetryPublisher
from outboxkit.brokers.rabbitmq.taps import Arrived
from outboxkit.brokers.rabbitmq.topology import Queues, dead_queue, retry_queue
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message
from outboxkit.retry import delay_for


class Source(Protocol):
    """Where a delivery comes from, and may go again."""

    async def copy(self, delivery: "RabbitDelivery", marked: DeliveryHeaders, step: timedelta | None) -> None:
        """Put a copy into a step of the ladder, or where there is none at the end of the delivery's own queue.

        Raises:
            BrokerUnavailable: the copy may be missing; the message is delivered again.
        """

    @property
    def ladder(self) -> tuple[timedelta, ...]:
        """The retry steps, ascending."""


class RabbitDelivery:
    """One arrival, on the channel that it must be settled on."""

    __slots__ = ("_source", "arrived", "dropped", "intake", "marks", "message", "returned", "topic")

    def __init__(self, arrived: Arrived, intake: DeliveryChannel, source: Source, *, dropped: bool) -> None:
        found = arrived.properties
        self.arrived = arrived
        self.dropped = dropped
        self.topic = decode.topic_of(found, arrived.routing_key, dropped=dropped)
        self.message: Message | Malformed = decode.to_message(found, arrived.body, self.topic)
        self.marks = reserved.read(found.headers) if found.headers else reserved.FRESH
        self.returned = decode.returned(found, redelivered=arrived.redelivered)
        self.intake = intake
        self._source = source

    async def ack(self) -> None:
        """Basic.Ack, together with the others of this moment."""
        self.intake.ack(self.arrived.tag)

    async def requeue(self) -> None:
        """Basic.Nack with requeue."""
        self.intake.nack(self.arrived.tag)

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Publish a copy to a retry step, confirmed, and only then ack: a crash in between leaves two, never none."""
        step = delay_for(self._source.ladder, self.marks.attempt, after)
        await self._source.copy(self, self.marks.next_attempt(now=datetime.now(UTC), handlers=handlers), step)
        await self.ack()
        return step

    async def requeue_fresh(self) -> None:
        """Publish a copy to the same queue, confirmed, and only then ack."""
        await self._source.copy(self, self.marks, None)
        await self.ack()


LOOKS, LOOK_SECONDS = 2, 0.05
"""How often a queue must be found empty, and how long after another: a pushed message may arrive behind the answer."""


class RabbitSubscriber:
    """Receives from one durable quorum queue, bound to the exchange by message types.

    Beside queue `Q` it declares `Q.retry.<step>` for each step of the ladder, in which messages wait for their next
    attempt, and `Q.dead`, which receives what the broker would drop by a limit of its own. That is delivered, too, as
    `dropped`.

    Args:
        url: `amqp://` or `amqps://`.
        queue: its name.
        exchange: the topic exchange, declared where it is missing.
        topics: routing keys to bind, usually the handled event types.
        prefetch: how many deliveries may be unacked at once.
        ladder: the retry steps, ascending.
        ordered: only one consumer of the queue gets messages at a time, the next one when it is gone.
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
        ordered: bool = False,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self.ladder = tuple(ladder)
        self._url, self._addresses = url, connection.Addresses(url)
        self._queue, self._dead = queue, dead_queue(queue)
        self._queues = Queues(queue, exchange, topics, self.ladder, ordered, vhost=connection.vhost(url))
        self._prefetch = prefetch
        self._timeout = timeout.total_seconds()
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: aiormq.abc.AbstractChannel | None = None
        self._intake: DeliveryChannel | None = None
        self._consuming: asyncio.Task[None] | None = None
        self._consumed: DeliveryChannel | None = None
        self._copies = RetryPublisher(url, name=f"outboxkit consumer {queue} copies", timeout=self._timeout)

    @property
    def address(self) -> str:
        """The broker's, without user and password."""
        return urls.shown(self._url)

    async def connect(self) -> None:
        """Open the connection and declare everything, unless that is done.

        Raises:
            BrokerUnavailable: not reachable.
            ConfigurationError: a queue exists and is of another kind.
        """
        if self._intake is not None and self._intake.lost is None:
            return
        await self._leave()
        intake = DeliveryChannel(timeout=self._timeout)

        async def on_cancelled(_: object) -> None:
            intake.lose("the broker cancelled the consumer: was the queue deleted?")

        try:
            self._connection = await connection.connect(
                self._addresses,
                name=f"outboxkit consumer {self._queue}",
                timeout=self._timeout,
                on_lost=intake.lose,
                tap=intake.deliveries,
                on_writer=intake.writes_to,
            )
            channel, self._channel = await connection.open_channel(self._connection, on_lost=intake.lose)
            self._channel.on_consumer_cancel_callbacks.add(on_cancelled)
            await self._queues.declare(channel, self._timeout)
            with connection.converted("cannot bound what is pushed ahead"):
                await channel.set_qos(prefetch_count=self._prefetch, timeout=self._timeout)
            intake.listen(channel=self._channel.number)
            self._intake = intake
        except BaseException:
            await self._leave()
            raise

    async def receive(self, *, wait: bool = True) -> RabbitDelivery | None:
        """The next delivery, pushed by the broker; with `wait=False` None where the queue has proved empty.

        None may also mean that so much is unsettled that nothing more is pushed.
        """
        intake = self._open_intake()
        if intake.ceased and not wait:
            return None
        if not intake.ceased:
            await self._consume(intake)
        arrived = await (intake.next() if wait else self._next_or_none(intake))
        return None if arrived is None else self._delivery(arrived, intake)

    async def postponed(self) -> int:
        """The number of messages in all retry steps."""
        return sum([await self._depth(retry_queue(self._queue, step)) for step in self.ladder])

    async def copy(self, delivery: RabbitDelivery, marked: DeliveryHeaders, step: timedelta | None) -> None:
        """Put a copy of a delivery into a retry step, or at the end of its queue.

        Without a confirm everything comes again: the connection is given up, and `connect` declares what is missing.
        One that ceased is left as it is: what else runs on it can still be settled.
        """
        over = delivery.intake.over
        queue = delivery.arrived.consumer if step is None else retry_queue(self._queue, step)
        try:
            await self._copies.put(delivery.arrived, queue, marks=marked, topic=delivery.topic, over=over)
        except BrokerUnavailable as error:
            if not over.is_set():
                delivery.intake.lose(str(error))
            raise

    async def stop_receiving(self) -> None:
        """Basic.Cancel; what was pushed and not received goes back."""
        intake, channel = self._open_intake(), self._channel
        if self._consuming is not None:
            await asyncio.wait((self._consuming,))
        if channel is not None:
            await intake.stop_receiving(channel, *((self._queue, self._dead) if self._consumed is intake else ()))

    async def close(self) -> None:
        """Disconnect; the broker takes back what was not acked."""
        await self._leave()
        await self._copies.close()

    async def _leave(self) -> None:
        gone, intake = self._connection, self._intake
        self._connection = self._channel = self._intake = None
        if self._consuming is not None:
            self._consuming.cancel()
            self._consuming = None
        if intake is not None:
            intake.flush()
            intake.lose("closed")
        await connection.close(gone)

    async def _consume(self, intake: DeliveryChannel) -> None:
        """Have both queues pushed, once; whoever is cancelled meanwhile leaves it to go on."""
        if self._consumed is intake:
            return
        if self._consuming is None:
            self._consuming = asyncio.create_task(self._begin_consuming(intake))
            self._consuming.add_done_callback(self._begun)
        with connection.converted("cannot consume"):
            await asyncio.shield(self._consuming)

    async def _begin_consuming(self, intake: DeliveryChannel) -> None:
        if self._channel is not None:
            with intake.reading():
                for queue in (self._dead, self._queue):  # no answer is to stand behind what the larger one pushes
                    await intake.consume(self._channel, queue)
            self._consumed = intake

    def _begun(self, task: "asyncio.Task[None]") -> None:
        self._consuming = None if self._consuming is task else self._consuming
        if not task.cancelled():
            task.exception()  # looked at here too, in case everybody who waited for it was cancelled

    async def _next_or_none(self, intake: DeliveryChannel) -> Arrived | None:
        """What has arrived or is still in a queue; None where both were found empty twice with nothing in between."""
        looks = 0
        while (arrived := intake.next_present()) is None and looks < LOOKS and not self._is_used_up(intake):
            if self._queues.ordered:
                await asyncio.sleep(LOOK_SECONDS)
                if intake.waiting:
                    continue
                looks = looks + 1 if await self._is_empty(self._queue) and await self._is_empty(self._dead) else 0
            elif (arrived := await intake.ask(self._queue) or await intake.ask(self._dead)) is not None:
                break
            else:
                looks += 1
                await asyncio.sleep(LOOK_SECONDS)
        return arrived

    def _is_used_up(self, intake: DeliveryChannel) -> bool:
        """Whether nothing more comes before something is settled; an ordered queue gives nothing but what it pushes."""
        return intake.full or (self._queues.ordered and intake.unsettled >= self._prefetch)

    async def _is_empty(self, queue: str) -> bool:
        """Whether a queue that cannot be asked for a message has none that is ready.

        A broker that has lost the queue's leader says that there is neither a message nor a consumer; there is one.
        """
        found = await self._declared(queue)
        return not found.message_count and bool(found.consumer_count)

    async def _depth(self, queue: str) -> int:
        return (await self._declared(queue)).message_count or 0

    async def _declared(self, queue: str) -> commands.Queue.DeclareOk:
        intake, channel = self._open_intake(), self._channel
        assert channel is not None  # noqa: S101 - they are set together
        try:
            with connection.converted(f"cannot ask for the length of {queue!r}"), intake.reading():
                return await channel.queue_declare(queue, passive=True, timeout=self._timeout)
        except BrokerUnavailable as error:
            intake.lose(str(error))
            raise

    def _open_intake(self) -> DeliveryChannel:
        if self._intake is None or self._intake.lost is not None:
            reason = "not connected" if self._intake is None else self._intake.lost
            raise BrokerUnavailable(f"the connection to the broker is closed: {reason}")
        return self._intake

    def _delivery(self, arrived: Arrived, intake: DeliveryChannel) -> RabbitDelivery:
        return RabbitDelivery(arrived, intake, self, dropped=arrived.consumer == self._dead)
