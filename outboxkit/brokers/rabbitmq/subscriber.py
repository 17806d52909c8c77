"""Subscriber for RabbitMQ: a quorum queue, copies of its messages that wait, and deliveries with manual acks."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta

import aio_pika
import aiormq
import structlog
from pamqp import commands

from outboxkit import defaults
from outboxkit.brokers import Subscriber
from outboxkit.brokers.rabbitmq import connection, incoming, rights
from outboxkit.brokers.rabbitmq.copies import RetryPublisher
from outboxkit.brokers.rabbitmq.incoming import DeliveryChannel, RabbitDelivery, RawDelivery
from outboxkit.brokers.rabbitmq.shards import MOVED, move_of
from outboxkit.brokers.rabbitmq.topology import FIRST_WAIT, CopyRoute, Queues, dead_queue
from outboxkit.codec.headers import KEY, DeliveryHeaders
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.runtime import urls
from outboxkit.runtime.sources import Shards

EMPTY_POLLS, POLL_SECONDS = 2, 0.05
"""A queue counts as empty after so many polls in a row, at this interval. A message may be on its way meanwhile."""

STALL_SECONDS = 30.0
"""After so long without a delivery a subscriber asks the broker whether messages wait."""
STALLED = "messages wait in the queue, and the broker delivers none: was it deleted and made again?"
STREAM_OFFSET = "x-stream-offset"
KINDS = "Quorum and classic queues are accepted; bind one of them to the same exchange"


class RabbitSubscriber(Subscriber):
    """A subscriber to one durable quorum queue, bound to the exchange by message types.

    Messages wait for their next attempt in `outboxkit.delay.<delay>`, a queue for each retry delay that all consumers
    of the virtual host share. Into `Q.dead` beside queue `Q` go the messages that the broker drops from `Q` by a limit
    of its own. They are delivered as well, as `dropped`.

    Args:
        exchange: the topic exchange, which is declared if it is missing. None: the queue exists, of any kind but a
            stream, and is consumed as it is. Then nothing but missing retry queues of its own is declared, such as
            `Q.retry.10s`, and nothing is bound.
        topics: routing keys to bind, usually the handled event types. `(exchange, key)` binds to another exchange.
        ordered: declare the queue with a single active consumer, so that only one consumer at a time gets messages.
        shards: those of the ordered queue that this one belongs to. It declares its own queue alone and binds nothing:
            `ShardMove` does that. Copies of failed messages return to the queue that is split.
        timeout: the limit for each answer of the broker.

    Attributes:
        connects: the number of times that it has connected.
        max_unacked_bytes: above so many unacked bytes it stops reading; several subscribers of a process share 32 MiB.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        exchange: str | None,
        topics: Sequence[str | tuple[str, str]],
        prefetch: int = defaults.PREFETCH,
        delays: Sequence[timedelta] = defaults.RETRY_DELAYS,
        ordered: bool = False,
        shards: Shards | None = None,
        timeout: timedelta = defaults.PUBLISH_TIMEOUT,
    ) -> None:
        self._shards, self._topics = shards, topics
        self._home = queue if shards is None else shards.queue
        self._markers: dict[int, RawDelivery] = {}
        self._passed: float = -1 if shards else math.inf
        self._move = math.inf
        self._early = set[int]()
        self._keys: dict[int, str | None] = {}
        self.connects = 0
        self._has_received = False
        self.delays = tuple(delays)
        self._url, self._addresses, self._measured = url, connection.Addresses(url), connection.Addresses(url)
        self.exchange, self._queue, self._dead = exchange, queue, dead_queue(queue)
        self._sources: tuple[str, ...] = ()
        home, own_topics = (None, topics) if shards is None else (shards.queue, ())
        self._queues = Queues(queue, exchange, own_topics, self.delays, ordered, vhost=connection.vhost(url), home=home)
        self._prefetch, self.max_unacked_bytes = prefetch, incoming.MAX_UNACKED_BYTES
        self._timeout = timeout.total_seconds()
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._wire: aiormq.abc.AbstractChannel | None = None
        self._channel: DeliveryChannel | None = None
        self._measuring: aio_pika.abc.AbstractConnection | None = None
        self._is_measuring = False
        self._consuming: asyncio.Task[None] | None = None
        self._consumed: DeliveryChannel | None = None
        self._waiting = Counter[str]()
        self._retry_publisher = RetryPublisher(url, name=f"outboxkit consumer {queue} copies", timeout=self._timeout)
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    @property
    def address(self) -> str:
        """The broker's URLs without user and password."""
        return urls.shown(self._url)

    @property
    def trouble(self) -> str | None:
        """The reason for which nothing can be received now; None: it is connected. Any thread may read it."""
        channel = self._channel
        return "not connected" if channel is None else channel.lost

    async def connect(self) -> None:
        """Open the connection and declare the queues, if that is not done yet.

        Raises:
            BrokerUnavailable: the broker is not reachable.
            ConfigurationError: a queue exists and is of another kind.
        """
        if self._channel is not None and self._channel.lost is None:
            return
        await self._disconnect()
        channel = DeliveryChannel(
            timeout=self._timeout, max_unacked_bytes=self.max_unacked_bytes, ordered=self._queues.ordered
        )

        async def on_cancelled(_: object) -> None:
            channel.lose("the broker cancelled the consumer: was the queue deleted?")

        try:
            self._connection = await connection.connect(
                self._addresses,
                name=f"outboxkit consumer {self._queue}",
                timeout=self._timeout,
                on_lost=channel.lose,
                tap=channel.parser,
                on_writer=channel.writes_to,
            )
            amqp_channel, self._wire = await connection.open_channel(self._connection, on_lost=channel.lose)
            self._wire.on_consumer_cancel_callbacks.add(on_cancelled)
            with self._naming_rights():
                self._sources = await self._queues.prepare(self._connection, self._timeout)
            with connection.convert_errors("cannot set the prefetch"):
                await amqp_channel.set_qos(prefetch_count=self._prefetch, timeout=self._timeout)
            channel.listen(channel=self._wire.number)
            self._channel = channel
            self.connects += 1
        except (Exception, asyncio.CancelledError):
            await self._disconnect()
            raise

    async def start_receiving(self) -> None:
        """Have the broker push the deliveries of the queues, if that is not done yet.

        Raises:
            BrokerRefused: this user may not read a queue.
        """
        with self._naming_rights():
            await self._consume(self._open_channel())

    def _naming_rights(self) -> AbstractContextManager[None]:
        exchange, shards = self.exchange, self._shards
        needed = rights.of_consumer(
            [self._queue] if shards is None else shards.consumed,
            exchange=exchange,
            delays=self.delays,
            sources=[topic[0] for topic in self._topics if not isinstance(topic, str)],
            shards=shards,
        )
        line = needed.command(self._queues.vhost, rights.user_of(self._url))
        instead = ". Or consume a queue that is declared and bound as it is, with --no-declare"
        return connection.naming_rights(line, "" if exchange is None else instead)

    def keys_left(self, move: int) -> tuple[str, ...] | None:
        """The keys of unsettled messages from before this change of the number of shards; empty if none is left.

        None if they are not known: the marker behind them has not come, or one of them has no key. Other consumers hold
        none: the broker gives the marker to the consumer that has got all messages in front of it.
        """
        marker, channel = self._markers.get(move), self._channel
        if marker is None or channel is None:
            return None
        keys = {key for tag, key in self._keys.items() if tag < marker.tag and channel.is_unacked(tag)}
        return None if None in keys else tuple(sorted(filter(None, keys)))

    def follow(self, move: int, *, is_settled: bool) -> None:
        """Learn of all changes of the number of shards up to `move`. Deliveries behind a later marker are held.

        The markers of earlier changes are acked, now or when they come. That of `move` is acked once the change
        `is_settled` for this queue. Until then it stops a process that gets the queue after this one and does not know
        of the change.

        Each change is written to the database before its marker is sent. So a later marker that is still unknown at the
        second call belongs to no change: it is acked, with a warning.
        """
        self._move, self._passed, channel = move, move if is_settled else move - 1, self._channel
        if channel is None:
            return
        self._keys = {tag: key for tag, key in self._keys.items() if channel.is_unacked(tag)}
        for passed in [each for each in self._markers if each <= self._passed]:
            with suppress(BrokerUnavailable):
                channel.ack(self._markers.pop(passed).tag)
        early = {each for each in self._markers if each > move}
        for unknown in early & self._early:
            self._log.warning("left out the marker of a change of shards that the database does not know", move=unknown)
            with suppress(BrokerUnavailable):
                channel.ack(self._markers.pop(unknown).tag)
        self._early = early - self._early
        channel.hold(on=bool(self._early))

    def _is_message(self, raw: RawDelivery, channel: DeliveryChannel) -> bool:
        """Whether this is not a marker. The first marker of a change is kept unacked until `follow` acks it."""
        properties = raw.properties
        move = move_of(self._home, properties.message_id) if properties.message_type == MOVED else None
        if move is None or not self._queues.ordered:
            if self._shards is not None:
                key = (properties.headers or {}).get(KEY)
                self._keys[raw.tag] = key if isinstance(key, str) else None
            return True
        if move <= self._passed or self._markers.setdefault(move, raw) is not raw:
            channel.ack(raw.tag)
        elif move > self._move:
            channel.hold(on=True)
        return False

    async def receive(self, *, wait: bool = True) -> RabbitDelivery | None:
        """The next delivery, pushed by the broker. With `wait=False` None if the queue is empty.

        None may also mean that so many deliveries are unacked that the broker pushes no more.
        """
        channel = self._open_channel()
        is_stopped = channel.stopped.is_set()
        if is_stopped and not wait:
            return None
        if not is_stopped:
            await self._consume(channel)
        while (raw := await (self._next(channel) if wait else self._next_or_none(channel))) is not None:
            if self._is_message(raw, channel):
                break
        if raw is None:
            return None
        is_first, self._has_received = not self._has_received, True
        may_be_stream = self._queues.exchange is None and is_first and not raw.redelivered  # or a client set the header
        if may_be_stream and STREAM_OFFSET in (raw.properties.headers or ()):
            raise ConfigurationError(f"OUTBOXKIT_QUEUE is {self._queue!r}, a stream: it keeps what was acked. {KINDS}")
        waited_in = (raw.properties.headers or {}).get(FIRST_WAIT)
        if isinstance(waited_in, str) and self._waiting[waited_in]:
            self._waiting[waited_in] -= 1
        return RabbitDelivery(raw, channel, self, dropped=raw.consumer == self._dead)

    async def waiting_retries(self) -> int:
        """The number of messages that this subscriber has put off and not received again; not those of others."""
        return self._waiting.total()

    async def lengths(self) -> Mapping[str, int]:
        """The number of ready messages of its queue, its dead queue and the retry queues, without the management API.

        A message that was pushed to a consumer is not ready. Consumers of a virtual host share their retry queues. This
        has a connection of its own: an answer must not wait behind deliveries, and a missing queue closes a channel.
        """
        names = (self._queue, *(self._queues.route(delay).name for delay in self.delays), self._dead)
        self._is_measuring = True
        try:
            async with asyncio.timeout(self._timeout):
                if self._measuring is None:
                    name = f"outboxkit consumer {self._queue} lengths"
                    self._measuring = await connection.connect(self._measured, name=name, timeout=self._timeout)
                opened = self._measuring
                depths = {name: await self._queues.depth(opened, name, self._timeout) for name in names}
        except (Exception, asyncio.CancelledError):
            await self._end_measuring()
            raise
        finally:
            self._is_measuring = False
        return {name: depth for name, depth in depths.items() if depth is not None}

    async def _end_measuring(self) -> None:
        measuring, self._measuring = self._measuring, None
        await connection.close(measuring)

    async def copy(self, delivery: RabbitDelivery, delivery_headers: DeliveryHeaders, delay: timedelta | None) -> None:
        """Put a copy of a delivery into the queue of a retry delay or, without a delay, at the end of its own queue.

        If the copy is not confirmed, the channel is given up: the broker delivers its messages again, and `connect`
        declares the queues that are missing. A stopped channel is kept, so that its other deliveries can be acked.
        """
        stopped = delivery.channel.stopped
        route = CopyRoute("", delivery.raw.consumer) if delay is None else self._queues.route(delay)
        try:
            await self._retry_publisher.put(
                delivery.raw, route, delivery_headers=delivery_headers, topic=delivery.topic, stopped=stopped
            )
        except BrokerUnavailable as error:
            if not stopped.is_set():
                delivery.channel.lose(str(error))
            raise
        self._waiting[route.name] += delay is not None

    async def stop_receiving(self) -> None:
        """Basic.Cancel. Pushed messages that `receive` has not returned are requeued.

        An ordered subscriber takes no more deliveries, and keeps all that are not acked until it is closed.
        """
        channel, wire = self._open_channel(), self._wire
        if self._consuming is not None:
            await asyncio.wait((self._consuming,))
        if wire is not None:
            queues = self._sources if self._consumed is channel else ()
            await channel.stop_receiving(wire, *queues)

    async def close(self) -> None:
        """Disconnect. The broker requeues the unacked messages."""
        await self._disconnect()
        await self._retry_publisher.close()
        if not self._is_measuring:
            await self._end_measuring()

    async def _disconnect(self) -> None:
        amqp_connection, channel = self._connection, self._channel
        self._connection = self._wire = self._channel = None
        self._markers.clear()
        self._early.clear()
        self._keys.clear()
        if self._consuming is not None:
            self._consuming.cancel()
            self._consuming = None
        if channel is not None:
            channel.flush()
            channel.lose("closed")
        await connection.close(amqp_connection)

    async def _consume(self, channel: DeliveryChannel) -> None:
        """Start consuming from both queues, once. It goes on if the caller is cancelled."""
        if self._consumed is channel:
            return
        if self._consuming is None:
            self._consuming = asyncio.create_task(self._start_consuming(channel))
            self._consuming.add_done_callback(self._on_consuming)
        with connection.convert_errors("cannot consume"):
            await asyncio.shield(self._consuming)

    async def _start_consuming(self, channel: DeliveryChannel) -> None:
        if self._wire is not None:
            with channel.reading():
                for queue in self._sources:  # the larger one last: no answer comes behind its messages
                    await channel.consume(self._wire, queue)
            self._consumed = channel

    def _on_consuming(self, task: "asyncio.Task[None]") -> None:
        self._consuming = None if self._consuming is task else self._consuming
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case every caller that waited for it was cancelled

    async def _next(self, channel: DeliveryChannel) -> RawDelivery:
        """The next delivery; waits for one.

        RabbitMQ may forget the consumers of a queue that is deleted and made again at once. So the channel is given up
        if messages wait at two checks in a row, and none is delivered.
        """
        if channel.has_next:
            return await channel.next()
        has_waited = is_waiting = False
        while not (has_waited and is_waiting):
            has_waited = is_waiting
            with suppress(TimeoutError):
                async with asyncio.timeout(STALL_SECONDS):
                    return await channel.next()
            is_waiting = await asyncio.shield(asyncio.ensure_future(self._has_waiting(channel)))
        channel.lose(STALLED)
        return await channel.next()

    async def _has_waiting(self, channel: DeliveryChannel) -> bool:
        """Whether messages are ready that should have been delivered to this subscriber."""
        if self._queues.exchange is None or self._queues.ordered:  # another consumer may be the active one
            return False
        if channel.unacked or channel.stopped.is_set() or channel.parser.is_within_delivery:
            return False
        return any([await self._depth(queue) for queue in self._sources])

    async def _next_or_none(self, channel: DeliveryChannel) -> RawDelivery | None:
        """The next delivery; None if both queues were empty in two polls in a row.

        The channel of a queue that is not ordered is given up if messages wait for 30 s, and none is delivered.
        """
        polls, stalls_at = 0, time.monotonic() + STALL_SECONDS
        while (raw := channel.next_nowait()) is None and polls < EMPTY_POLLS and not self._is_exhausted(channel):
            await asyncio.sleep(POLL_SECONDS)
            if channel.has_next:
                continue
            # The client library closes the channel if a question is cancelled.
            polls = polls + 1 if await asyncio.shield(asyncio.ensure_future(self._all_empty())) else 0
            if not polls and not self._queues.ordered and time.monotonic() > stalls_at:
                channel.lose(STALLED)
        return raw

    def _is_exhausted(self, channel: DeliveryChannel) -> bool:
        """Whether no delivery can come before one is acked."""
        return channel.is_full or channel.is_held or channel.unacked >= self._prefetch

    async def _all_empty(self) -> bool:
        for queue in self._sources:
            if not await self._is_empty(queue):
                return False
        return True

    async def _is_empty(self, queue: str) -> bool:
        """Whether a queue has no ready message.

        A broker that has lost the queue's leader reports neither messages nor consumers. There is a consumer: this one.
        """
        declared = await self._declare_passively(queue)
        return not declared.message_count and bool(declared.consumer_count)

    async def _depth(self, queue: str) -> int:
        return (await self._declare_passively(queue)).message_count or 0

    async def _declare_passively(self, queue: str) -> commands.Queue.DeclareOk:
        channel, wire = self._open_channel(), self._wire
        assert wire is not None  # noqa: S101 - they are set together
        try:
            with connection.convert_errors(f"cannot ask for the length of {queue!r}"), channel.reading():
                return await wire.queue_declare(queue, passive=True, timeout=self._timeout)
        except BrokerUnavailable as error:
            channel.lose(str(error))
            raise

    def _open_channel(self) -> DeliveryChannel:
        if self._channel is None or self._channel.lost is not None:
            reason = "not connected" if self._channel is None else self._channel.lost
            raise BrokerUnavailable(f"the connection to the broker is closed: {reason}")
        return self._channel
