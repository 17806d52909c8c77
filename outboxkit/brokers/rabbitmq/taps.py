"""Taps between the socket and the client library: parsers of the bytes that arrive (AMQP 0-9-1, section 4.2.3).

They take publisher confirms and deliveries out of the bytes and report them to a listener. All other frames go on to
the client library. Decision 13 has the reasons.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Any, Protocol

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands, frame
from yarl import URL

from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.confirms import ConfirmTracker
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.encode import BODY, END, FRAME_OVERHEAD, HEADER, METHOD

PAYLOAD = 7
"""Offset of the payload in a frame."""
HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, END))
FRAME_TYPES = (METHOD, HEADER, BODY, HEARTBEAT[0])
_FRAME, _METHOD = Struct(">BHI"), Struct(">I")

FrameHandler = Callable[[int, int, int, bytes, int], bool]
"""Takes a frame and returns True, or returns False to leave it to the client library.

Its arguments are the frame's type, its channel, the size of its payload, a buffer, and the frame's offset in it.
"""


SIGN_OF_LIFE_SECONDS = 1.0
"""The interval at which the client library gets heartbeats while it sees no frame that arrives."""

OnWriter = Callable[[asyncio.StreamWriter, Callable[[], None]], None]
"""Gets the writer of a connection, and a function that reports a heartbeat to the client library."""


class Tap(Protocol):
    """A filter in front of the client library for the bytes that arrive on a connection."""

    def feed(self, data: bytes) -> bytes:
        """Take the tap's own frames out of the data. Returns those for the client library, whole ones only."""


class FrameSplitter:
    """A splitter of the byte stream into frames, each of which it offers to a handler."""

    def __init__(self, handler: FrameHandler) -> None:
        self._handler = handler
        self._incomplete = b""

    def feed(self, data: bytes) -> bytes:
        """The frames for the client library. An incomplete frame is kept until the rest of it arrives."""
        buffer = self._incomplete + data if self._incomplete else data
        handler, unpack = self._handler, _FRAME.unpack_from
        offset, copied, pieces, stop = 0, 0, [], len(buffer)
        while stop - offset >= FRAME_OVERHEAD:
            kind, channel, size = unpack(buffer, offset)
            if kind not in FRAME_TYPES:  # not AMQP: the client library reports it
                offset = stop
                break
            end = offset + size + FRAME_OVERHEAD
            if end > stop:
                break
            if handler(kind, channel, size, buffer, offset):
                pieces.append(buffer[copied:offset])
                copied = end
            offset = end
        pieces.append(buffer[copied:offset])
        self._incomplete = buffer[offset:]
        return b"".join(pieces)


CONFIRM_SIZE = 13
"""Bytes of an ack's or a nack's payload (section 1.8.3.13): class, method, delivery tag, bits."""
_CONFIRM, _CONTENT = Struct(">HHQB"), Struct(">HHQH")
_ACK, _NACK, _RETURN = (60, 80), (60, 120), 60 << 16 | 50
_CHANNEL_CLOSE, _CONNECTION_CLOSE = 20 << 16 | 40, 10 << 16 | 50
_BLOCKED, _UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61


class ConfirmParser:
    """A parser of the publisher confirms on one channel of a connection."""

    def __init__(self) -> None:
        self._tracker: ConfirmTracker | None = None
        self._channel = 0
        self._splitter = FrameSplitter(self._take)
        self._return: commands.Basic.Return | None = None
        self._return_id = ""
        self._return_bytes = 0

    def report_to(self, tracker: ConfirmTracker, *, channel: int) -> None:
        """Report the confirms on this channel to `tracker` from now on."""
        self._tracker, self._channel, self._return = tracker, channel, None

    def feed(self, data: bytes) -> bytes:
        """The frames for the client library. An incomplete frame is kept until the rest of it arrives."""
        return self._splitter.feed(data)

    def _take(self, kind: int, channel: int, size: int, buffer: bytes, offset: int) -> bool:
        """The frame handler: it takes acks, nacks and returned messages, and only looks at closes and blocks."""
        tracker = self._tracker
        if tracker is None:
            return False
        if kind == METHOD:
            if channel == self._channel and size == CONFIRM_SIZE:
                class_, method, tag, bits = _CONFIRM.unpack_from(buffer, offset + PAYLOAD)
                if (class_, method) == _ACK:
                    tracker.ack(tag, multiple=bool(bits & 1))
                    return True
                if (class_, method) == _NACK:
                    tracker.nack(tag, multiple=bool(bits & 1))
                    return True
            is_ours = channel in (0, self._channel)
            return is_ours and self._take_method(tracker, buffer[offset : offset + size + FRAME_OVERHEAD])
        if channel != self._channel or self._return is None:
            return False
        if kind == HEADER:
            self._begin_return(buffer[offset + PAYLOAD : offset + PAYLOAD + size])
        else:
            self._return_bytes -= size
        if self._return_bytes <= 0:
            self._end_return(tracker)
        return True

    def _take_method(self, tracker: ConfirmTracker, data: bytes) -> bool:
        (number,) = _METHOD.unpack_from(data, PAYLOAD)
        if number not in (_RETURN, _CHANNEL_CLOSE, _CONNECTION_CLOSE, _BLOCKED, _UNBLOCKED):
            return False
        method = frame.unmarshal(data)[2]
        match method:
            case commands.Basic.Return():
                self._return = method
                return True
            case commands.Channel.Close():
                tracker.closed(method.reply_code or 0, method.reply_text or "", connection_too=False)
            case commands.Connection.Close():
                tracker.closed(method.reply_code or 0, method.reply_text or "", connection_too=True)
            case commands.Connection.Blocked():
                tracker.blocked(method.reason or "")
            case commands.Connection.Unblocked():
                tracker.blocked(None)
        return False

    def _begin_return(self, payload: bytes) -> None:
        _, _, self._return_bytes, flags = _CONTENT.unpack_from(payload)
        self._return_id = decode.read_properties(flags, payload[_CONTENT.size :]).message_id or ""

    def _end_return(self, tracker: ConfirmTracker) -> None:
        method, self._return = self._return, None
        if method is not None:
            unbound = f"no queue is bound to exchange {method.exchange!r} for routing key {method.routing_key!r}"
            missing = f"there is no queue {method.routing_key!r}"
            tracker.returned(self._return_id, f"{method.reply_text}: {unbound}" if method.exchange else missing)


_TAG = Struct(">QB")
_DELIVER = 60 << 16 | 60


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


class DeliveryListener(Protocol):
    """The receiver of the deliveries on one channel. An exception that it raises ends the connection."""

    def delivered(self, delivery: RawDelivery) -> None:
        """Basic.Deliver: a message."""

    def closed(self, reason: str) -> None:
        """The broker closes the channel or the whole connection."""


class DeliveryParser:
    """A parser of the deliveries on one channel of a connection."""

    def __init__(self, listener: DeliveryListener) -> None:
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
        (number,) = _METHOD.unpack_from(buffer, payload)
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
        _, _, self._missing_bytes, delivery.flags = _CONTENT.unpack_from(payload)
        delivery.properties_bytes = payload[_CONTENT.size :]
        delivery.properties = decode.read_properties(delivery.flags, delivery.properties_bytes)

    def _end(self, delivery: RawDelivery) -> None:
        delivery.body = self._body_parts[0] if len(self._body_parts) == 1 else b"".join(self._body_parts)
        self._incomplete, self._body_parts = None, []
        self._listener.delivered(delivery)

    def _notice_close(self, buffer: bytes, offset: int, size: int) -> None:
        (number,) = _METHOD.unpack_from(buffer, offset + PAYLOAD)
        if number in (_CHANNEL_CLOSE, _CONNECTION_CLOSE):
            method = frame.unmarshal(buffer[offset : offset + size + FRAME_OVERHEAD])[2]
            assert isinstance(method, commands.Channel.Close | commands.Connection.Close)  # noqa: S101 - by its number
            self._listener.closed(f"{method.reply_code} {method.reply_text}")


class TappedTransports(TransportFactory):
    """The client library's transport factory, with a tap between the socket and the library.

    If the tap leaves nothing, the library gets a heartbeat now and then: frames of the tap are signs of life too. While
    a connection opens it reads the broker's reason for closing it, which the library does not tell.

    Attributes:
        is_opening: whether that reason is still searched.
        is_connected: whether the network has made the connection.
        close_code, close_reason: those of the broker; 0 and empty if it has not closed the connection.
    """

    def __init__(self, scheme: str, tap: Tap | None, on_writer: OnWriter | None = None) -> None:
        self._transports = TLSTransportFactory() if scheme == "amqps" else TCPTransportFactory()
        self._tap = tap
        self._on_writer = on_writer
        self._closes = FrameSplitter(self._look)
        self.is_opening, self.is_connected = True, False
        self.close_code, self.close_reason = 0, ""

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect. The reader gets only the frames that the tap leaves."""
        reader, writer = await self._transports.create(url, **options)
        self.is_connected = True
        feed, clock = reader.feed_data, asyncio.get_running_loop().time
        last = clock()

        def feed_rest(data: bytes) -> None:
            nonlocal last
            if self.is_opening:
                self._closes.feed(data)
            rest = data if self._tap is None else self._tap.feed(data)
            if not rest and clock() - last > SIGN_OF_LIFE_SECONDS:
                rest = HEARTBEAT
            if rest:
                last = clock()
                feed(rest)

        reader.feed_data = feed_rest  # type: ignore[method-assign,assignment]
        if self._on_writer is not None:
            self._on_writer(writer, partial(feed, HEARTBEAT))
        return reader, writer

    def _look(self, kind: int, _: int, size: int, buffer: bytes, offset: int) -> bool:
        start = offset + PAYLOAD
        if kind == METHOD and _METHOD.unpack_from(buffer, start)[0] == _CONNECTION_CLOSE:
            _, _, close = frame.unmarshal(buffer[offset : offset + size + FRAME_OVERHEAD])
            if isinstance(close, commands.Connection.Close):
                self.close_code, self.close_reason = close.reply_code or 0, close.reply_text or ""
        return False
