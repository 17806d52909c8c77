"""Deliveries of RabbitMQ: the bytes and the channel on which they arrive, each with its message, and their acks."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Protocol

from aiormq.abc import AbstractChannel
from pamqp import commands, frame

from outboxkit.brokers.rabbitmq import connection, decode, taps
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.encode import BASIC, END, FRAME_OVERHEAD, HEADER, METHOD
from outboxkit.brokers.rabbitmq.taps import (
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    CONTENT_HEADER,
    METHOD_NUMBER,
    PAYLOAD,
    FrameSplitter,
)
from outboxkit.codec.envelopes.envelope import Envelope, Malformed
from outboxkit.codec.headers import FRESH, DeliveryHeaders, read_delivery_headers
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message
from outboxkit.retry import delay_for

ACK, NACK, REQUEUE = 80, 120, 2
_ANSWER, _TAG = Struct(">BHIHHQBB"), Struct(">QB")
_SIZE, _DELIVER = 13, 60 << 16 | 60

MAX_UNACKED_BYTES = 32 * 1024 * 1024
"""Limit of a process's unacked deliveries above which reading is paused: the prefetch limits their number, not size.

It is 32 times the largest payload that the outbox accepts by default. A single larger delivery is read whole.
"""
HEADER_WEIGHT = 32
"""Factor by which bytes of headers count: a table of small fields takes about so much more memory once decoded."""


@dataclass(slots=True)
class RawDelivery:
    """A delivery as it is on the wire.

    Attributes:
        redelivered: whether the broker has delivered the message before, to any consumer.
        consumer: the tag of the consumer that it was pushed to.
        routing_key: the one with which the message came into the queue.
        flags: which properties it has.
    """

    tag: int
    redelivered: bool
    consumer: str
    routing_key: str
    flags: int = 0
    properties_bytes: bytes = b""
    properties: Properties = field(default_factory=Properties)
    body: bytes = b""


class DeliveryParser:
    """A parser of the deliveries on one channel of a connection. An exception of its listener ends the connection."""

    def __init__(self, listener: "DeliveryChannel") -> None:
        self._listener = listener
        self._channel = -1
        self._incomplete: RawDelivery | None = None
        self._missing_bytes = 0
        self._body_parts: list[bytes] = []
        self.feed = FrameSplitter(self._take).feed

    def listen(self, *, channel: int) -> None:
        """Report the deliveries on this channel from now on."""
        self._channel = channel

    @property
    def is_within_delivery(self) -> bool:
        """Whether a delivery has begun, and its rest has not arrived."""
        return self._incomplete is not None

    def _take(self, kind: int, channel: int, size: int, buffer: bytes, offset: int) -> bool:
        """The frame handler: it takes deliveries, and only looks at closes."""
        if channel != self._channel:
            if channel == 0 and kind == METHOD:
                self._notice_close(buffer, offset, size)
            return False
        payload = offset + PAYLOAD
        if kind == METHOD:
            return self._take_method(buffer, offset, size)
        if self._incomplete is None:
            return False
        if kind == HEADER:
            self._take_header(self._incomplete, buffer[payload : payload + size])
        else:
            self._body_parts.append(buffer[payload : payload + size])
            self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self._end(self._incomplete)
        return True

    def _take_method(self, buffer: bytes, offset: int, size: int) -> bool:
        payload = offset + PAYLOAD
        (number,) = METHOD_NUMBER.unpack_from(buffer, payload)
        if number != _DELIVER:
            self._notice_close(buffer, offset, size)
            return False
        start = payload + 5
        end = start + buffer[payload + 4]
        tag, redelivered = _TAG.unpack_from(buffer, end)
        size_at = end + 9
        size_at += buffer[size_at] + 1  # past the exchange
        routing_key = buffer[size_at + 1 : size_at + 1 + buffer[size_at]].decode(errors="backslashreplace")
        self._incomplete = RawDelivery(tag, bool(redelivered & 1), buffer[start:end].decode(), routing_key)
        self._missing_bytes, self._body_parts = 1, []  # the header, which comes next, has the real size
        return True

    def _take_header(self, delivery: RawDelivery, payload: bytes) -> None:
        _, _, self._missing_bytes, delivery.flags = CONTENT_HEADER.unpack_from(payload)
        delivery.properties_bytes = payload[CONTENT_HEADER.size :]
        delivery.properties = decode.read_properties(delivery.flags, delivery.properties_bytes)

    def _end(self, delivery: RawDelivery) -> None:
        delivery.body = self._body_parts[0] if len(self._body_parts) == 1 else b"".join(self._body_parts)
        self._incomplete, self._body_parts = None, []
        self._listener.delivered(delivery)

    def _notice_close(self, buffer: bytes, offset: int, size: int) -> None:
        (number,) = METHOD_NUMBER.unpack_from(buffer, offset + PAYLOAD)
        if number in (CHANNEL_CLOSE, CONNECTION_CLOSE):
            method = frame.unmarshal(buffer[offset : offset + size + FRAME_OVERHEAD])[2]
            assert isinstance(method, commands.Channel.Close | commands.Connection.Close)  # noqa: S101 - by its number
            self._listener.closed(f"{method.reply_code} {method.reply_text}")


class DeliveryChannel:
    """One AMQP channel, on a connection of its own, on which deliveries arrive and are acked.

    A quorum queue puts a message that is nacked behind all others. It puts one back into its place if the channel is
    closed. So an ordered channel that is stopped nacks nothing, and still consumes: until it is closed, no other
    consumer gets later messages.

    Args:
        timeout: the limit in seconds for an answer of the broker.
        max_unacked_bytes: the size of unacked deliveries above which nothing more is read.
        ordered: whether messages keep their places in the queue when they are given back by a stop.

    Attributes:
        lost: why the channel no longer works; None as long as it does.
        stopped: set once the channel takes no more deliveries, by `stop_receiving` or because it was lost.
        is_held: whether `next` and `next_nowait` return nothing for now.
        parser: feeds this channel with the frames of the connection.
    """

    def __init__(self, *, timeout: float, max_unacked_bytes: int, ordered: bool = False) -> None:
        self._ordered = ordered
        self.lost: str | None = None
        self.parser = DeliveryParser(self)
        self._timeout, self._max_unacked_bytes = timeout, max_unacked_bytes
        self._channel = 0
        self._acks = Acks(0)
        self._writer: asyncio.StreamWriter | None = None
        self._received: deque[RawDelivery] = deque()
        self._changed = asyncio.Event()
        self._is_flush_scheduled = self._is_paused = False
        self._report_heartbeat: Callable[[], None] | None = None
        self._answers_awaited = 0
        self.stopped = asyncio.Event()
        self.is_held = False

    @property
    def unacked(self) -> int:
        """The number of deliveries that `next` returned and that are neither acked nor requeued."""
        return self._acks.unacked - len(self._received)

    def is_unacked(self, tag: int) -> bool:
        """Whether the delivery with this tag has come, and is neither acked nor requeued."""
        return self._acks.is_unacked(tag)

    @property
    def has_next(self) -> bool:
        """Whether a pushed delivery waits for `next`."""
        return bool(self._received) and not self.is_held

    def hold(self, *, on: bool) -> None:
        """Keep back the deliveries that have come, or let `next` return them again."""
        self.is_held = on
        self._changed.set()

    @property
    def is_full(self) -> bool:
        """Whether the unacked deliveries are over the limit, so that reading is paused."""
        return self._acks.unacked_bytes > self._max_unacked_bytes

    def writes_to(self, writer: asyncio.StreamWriter, report_heartbeat: Callable[[], None] | None = None) -> None:
        """Set the writer for this channel's own frames, and the callback that shows the client library a heartbeat."""
        self._writer, self._report_heartbeat = writer, report_heartbeat

    def listen(self, *, channel: int) -> None:
        """Receive the deliveries of the AMQP channel of this number, on which none has arrived yet."""
        self._channel, self._acks = channel, Acks(channel)
        self.parser.listen(channel=channel)

    async def consume(self, channel: AbstractChannel, queue: str) -> None:
        """Basic.Consume: have the messages of a queue pushed. The consumer's tag is the queue's name.

        Raises:
            BrokerUnavailable: the channel was lost, or there is no such queue.
        """
        try:
            with connection.convert_errors(f"cannot consume from {queue!r}"), self.reading():
                await channel.basic_consume(queue, _ignore, consumer_tag=queue, timeout=self._timeout)
        except BrokerUnavailable as error:
            self.lose(str(error))
            raise

    async def next(self) -> RawDelivery:
        """The next pushed delivery; waits for one.

        Raises:
            BrokerUnavailable: the channel was lost, and with it the deliveries that wait here.
        """
        while self.lost is None:
            if self.has_next and not self.stopped.is_set():
                return self._received.popleft()
            self._changed.clear()
            await self._changed.wait()
        raise self._lost_error()

    def next_nowait(self) -> RawDelivery | None:
        """The next pushed delivery; None if none waits."""
        self._raise_if_lost()
        return self._received.popleft() if self.has_next else None

    async def stop_receiving(self, channel: AbstractChannel, *queues: str) -> None:
        """Basic.Cancel for these queues. Requeues the pushed deliveries that still wait."""
        self._raise_if_lost()
        self.stopped.set()
        if self._ordered:
            return
        with connection.convert_errors("cannot stop consuming"), self.reading():
            for queue in queues:
                await channel.basic_cancel(queue, timeout=self._timeout)
        while (delivery := self.next_nowait()) is not None:
            self.nack(delivery.tag)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which reading is never paused, for an answer of the broker that comes behind deliveries."""
        self._answers_awaited += 1
        self._read_or_pause()
        try:
            yield
        finally:
            self._answers_awaited -= 1
            self._read_or_pause()

    def ack(self, tag: int) -> None:
        """Ack the delivery with this tag. The acks of one turn of the event loop are sent together."""
        self._raise_if_lost()
        self._acks.ack(tag)
        if self._is_paused:
            self._read_or_pause()
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def nack(self, tag: int) -> None:
        """Requeue the delivery with this tag now; if the channel is ordered and stopped, when it is closed."""
        self._raise_if_lost()
        if self._ordered and self.stopped.is_set():
            return
        self._write(self._acks.nack(tag))
        if self._is_paused:
            self._read_or_pause()

    def flush(self) -> None:
        """Send the acks that were not sent yet, unless the channel was lost."""
        self._is_flush_scheduled = False
        if self.lost is None:
            with suppress(BrokerUnavailable):
                self._write(self._acks.take_frames())

    def lose(self, reason: str) -> None:
        """Mark the channel as lost: every other method raises from now on. The first reason is kept."""
        self.lost = self.lost or reason
        self._received.clear()
        self.stopped.set()
        self._changed.set()
        self._read_or_pause()

    def delivered(self, delivery: RawDelivery) -> None:
        """A message has arrived."""
        if self.lost is not None:
            return
        size = len(delivery.body) + HEADER_WEIGHT * len(delivery.properties_bytes)
        self._acks.record_delivery(delivery.tag, size)
        if self.is_full:
            self._read_or_pause()
        if self.stopped.is_set():
            with suppress(BrokerUnavailable):
                self.nack(delivery.tag)
            return
        self._received.append(delivery)
        self._changed.set()

    def closed(self, reason: str) -> None:
        """The broker has closed the channel."""
        self.lose(f"the broker closed the channel: {reason}")

    def _read_or_pause(self) -> None:
        """Pause reading from the connection if too much is unacked, or resume it."""
        pause = self.is_full and not self.stopped.is_set() and not self._answers_awaited
        if pause is self._is_paused or self._writer is None:
            return
        self._is_paused = pause
        if pause:
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(taps.SIGN_OF_LIFE_SECONDS, self._stay_alive)
        elif not self._writer.is_closing():
            self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def _stay_alive(self) -> None:
        """Report heartbeats to the client library while reading is paused: the broker's own are not read either."""
        if self._is_paused and self._report_heartbeat is not None:
            self._report_heartbeat()
            asyncio.get_running_loop().call_later(taps.SIGN_OF_LIFE_SECONDS, self._stay_alive)

    def _write(self, frames: bytes) -> None:
        if not frames:
            return
        if self._writer is None or self._writer.is_closing():
            self.lose("the connection was closed")
            raise self._lost_error()
        try:
            self._writer.write(frames)
        except RuntimeError as error:  # the end of the stream was written already, and its callbacks have not run yet
            self.lose(f"the connection was closed: {error}")
            raise self._lost_error() from error

    def _raise_if_lost(self) -> None:
        if self.lost is not None:
            raise self._lost_error()

    def _lost_error(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the connection to the broker was lost: {self.lost}")


async def _ignore(_: object) -> None:
    """The client library's callback. It is never called: the parser takes deliveries before the library sees them."""


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
        self.delivery_headers = read_delivery_headers(properties.headers) if properties.headers else FRESH
        if self.delivery_headers.absent:
            if self.topic == properties.message_type:  # a message without a topic is published with its type
                self.topic = ""
            properties = _without(properties, self.delivery_headers.absent)
        self.message: Message | Malformed = decode.to_message(properties, raw.body, self.topic)
        self.redeliveries = decode.redeliveries(properties, redelivered=raw.redelivered)
        self.channel = channel
        self._source = source

    @property
    def envelope(self) -> Envelope:
        """The delivery as its publisher sent it."""
        properties = _without(self.raw.properties, self.delivery_headers.absent)
        return decode.envelope_of(properties, self.raw.body, self.topic)

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

    async def requeue_fresh(self) -> None:
        """Publish a copy to the same queue, await its confirm, then ack."""
        await self._source.copy(self, self.delivery_headers, None)
        await self.ack()


def _without(properties: Properties, absent: Sequence[str]) -> Properties:
    """The properties without the stand-ins for those that the publisher did not send."""
    return replace(
        properties,
        message_id=None if "message_id" in absent else properties.message_id,
        message_type=None if "type" in absent else properties.message_type,
    )


class Acks:
    """The delivery tags of a channel, which count up from 1, and which of them are acked or nacked. Pure.

    Their acks leave in as few frames as possible (AMQP 0-9-1, section 1.8.3.13).

    Attributes:
        unacked_bytes: the total size of the deliveries that are neither acked nor nacked.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._lowest, self._highest = 1, 0
        self._answered: set[int] = set()
        self._unsent: list[int] = []
        self._sizes: dict[int, int] = {}
        self.unacked_bytes = 0

    @property
    def unacked(self) -> int:
        """The number of deliveries that are neither acked nor nacked."""
        return self._highest - (self._lowest - 1) - len(self._answered)

    def is_unacked(self, tag: int) -> bool:
        """Whether the delivery with this tag has come, and is neither acked nor nacked."""
        return tag in self._sizes

    def record_delivery(self, tag: int, size: int) -> None:
        """Add the delivery with this tag, of so many bytes."""
        self._highest = tag
        self._sizes[tag] = size
        self.unacked_bytes += size

    def ack(self, tag: int) -> None:
        """Have the next `take_frames` ack this delivery. Does nothing if it was acked or nacked before."""
        if self._answer(tag):
            self._unsent.append(tag)

    def nack(self, tag: int) -> bytes:
        """The frame that requeues this delivery; empty if it was acked or nacked before.

        It must be sent before the next frames of `take_frames`: one of them may ack everything up to a later tag.
        """
        return self._frame(NACK, tag, REQUEUE) if self._answer(tag) else b""

    def take_frames(self) -> bytes:
        """The frames that ack the deliveries acked since the last call.

        One frame with `multiple` covers all tags below the first unacked delivery. The others have a frame each.
        """
        tags, self._unsent = self._unsent, []
        lowest = self._lowest
        while lowest in self._answered:
            self._answered.discard(lowest)
            lowest += 1
        self._lowest = lowest
        below = [tag for tag in tags if tag < lowest]
        frames = [self._frame(ACK, max(below), len(below) > 1)] if below else []
        if len(below) < len(tags):
            frames += [self._frame(ACK, tag, 0) for tag in sorted(tags) if tag > lowest]
        return b"".join(frames)

    def _answer(self, tag: int) -> bool:
        if tag < self._lowest or tag in self._answered:
            return False
        self._answered.add(tag)
        self.unacked_bytes -= self._sizes.pop(tag, 0)
        return True

    def _frame(self, method: int, tag: int, bits: int) -> bytes:
        return _ANSWER.pack(METHOD, self._channel, _SIZE, BASIC, method, tag, bits, END)
