"""Parsers of the bytes that arrive on a connection (AMQP 0-9-1, section 4.2.3). Pure.

They take the answers to publishes and the deliveries of one channel, and hand them to a listener. Everything else is
passed on to the client library. Decisions 13 and 20 say why they do not take the library's own way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol

from pamqp import commands, frame
from pamqp.header import ContentHeader

from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.encode import BODY, END, FRAME_OVERHEAD, HEADER, METHOD

PAYLOAD = 7
"""Where in a frame its payload begins."""
HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, END))
FRAME_TYPES = (METHOD, HEADER, BODY, HEARTBEAT[0])
_FRAME = Struct(">BHI")

Take = Callable[[int, int, int, bytes, int], bool]
"""Whether a frame is taken: by its kind, its channel, the size of its payload, some bytes and where in them it is."""


class FrameSplitter:
    """Shows whole frames to `take`; those that it does not want are for the client library."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._rest = b""

    def feed(self, arrived: bytes) -> bytes:
        """What of the bytes is for others, whole frames only; the beginning of one is kept until its end arrives."""
        data = self._rest + arrived if self._rest else arrived
        take, frame = self._take, _FRAME.unpack_from
        position, passed, kept, end = 0, 0, [], len(data)
        while end - position >= FRAME_OVERHEAD:
            kind, channel, size = frame(data, position)
            if kind not in FRAME_TYPES:  # no AMQP: the client will say so
                position = end
                break
            after = position + size + FRAME_OVERHEAD
            if after > end:
                break
            if take(kind, channel, size, data, position):
                kept.append(data[passed:position])
                passed = after
            position = after
        kept.append(data[passed:position])
        self._rest = data[position:]
        return b"".join(kept)


CONFIRM_SIZE = 13
"""Bytes of an ack's or a nack's payload (section 1.8.3.13): class, method, delivery tag, bits."""
_CONFIRM, _METHOD = Struct(">HHQB"), Struct(">I")
_ACK, _NACK, _RETURN = (60, 80), (60, 120), 60 << 16 | 50
_CHANNEL_CLOSE, _CONNECTION_CLOSE = 20 << 16 | 40, 10 << 16 | 50
_BLOCKED, _UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61


class ConfirmListener(Protocol):
    """Who hears what the broker says of the messages of a channel."""

    def ack(self, tag: int, *, multiple: bool) -> None:
        """It has the message of this delivery tag; with `multiple` also all earlier ones."""

    def nack(self, tag: int, *, multiple: bool) -> None:
        """It does not take it."""

    def returned(self, message_id: str, reason: str) -> None:
        """No queue wants it; its ack follows."""

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:
        """The broker closes the channel or the whole connection."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no publishes of this connection now; None: it does again."""


class ConfirmParser:
    """What arrives on one connection."""

    def __init__(self) -> None:
        self._listener: ConfirmListener | None = None
        self._channel = 0
        self._cutter = FrameSplitter(self._take)
        self._returned: commands.Basic.Return | None = None
        self._returned_id = ""
        self._returned_body = 0

    def hand_to(self, listener: ConfirmListener, *, channel: int) -> None:
        """From now on `listener` hears of the publishes on this channel."""
        self._listener, self._channel, self._returned = listener, channel, None

    def feed(self, arrived: bytes) -> bytes:
        """What of the bytes is for others, whole frames only; the beginning of one is kept until its end arrives."""
        return self._cutter.feed(arrived)

    def _take(self, kind: int, channel: int, size: int, data: bytes, start: int) -> bool:
        """Whether the frame is an answer to a publish; the listener has heard of it then."""
        listener = self._listener
        if listener is None:
            return False
        if kind == METHOD:
            if channel == self._channel and size == CONFIRM_SIZE:
                class_, method, tag, bits = _CONFIRM.unpack_from(data, start + PAYLOAD)
                if (class_, method) == _ACK:
                    listener.ack(tag, multiple=bool(bits & 1))
                    return True
                if (class_, method) == _NACK:
                    listener.nack(tag, multiple=bool(bits & 1))
                    return True
            ours = channel in (0, self._channel)
            return ours and self._take_method(listener, data[start : start + size + FRAME_OVERHEAD])
        if channel != self._channel or self._returned is None:
            return False
        if kind == HEADER:
            self._open_return(data[start : start + size + FRAME_OVERHEAD])
        else:
            self._returned_body -= size
        if self._returned_body <= 0:
            self._end_return(listener)
        return True

    def _take_method(self, listener: ConfirmListener, data: bytes) -> bool:
        (method,) = _METHOD.unpack_from(data, PAYLOAD)
        if method not in (_RETURN, _CHANNEL_CLOSE, _CONNECTION_CLOSE, _BLOCKED, _UNBLOCKED):
            return False
        found = frame.unmarshal(data)[2]
        match found:
            case commands.Basic.Return():
                self._returned = found
                return True
            case commands.Channel.Close():
                listener.closed(found.reply_code or 0, found.reply_text or "", connection_too=False)
            case commands.Connection.Close():
                listener.closed(found.reply_code or 0, found.reply_text or "", connection_too=True)
            case commands.Connection.Blocked():
                listener.blocked(found.reason or "")
            case commands.Connection.Unblocked():
                listener.blocked(None)
        return False

    def _open_return(self, data: bytes) -> None:
        header = frame.unmarshal(data)[2]
        if isinstance(header, ContentHeader):
            self._returned_body, self._returned_id = header.body_size, header.properties.message_id or ""

    def _end_return(self, listener: ConfirmListener) -> None:
        found, self._returned = self._returned, None
        if found is not None:
            bound = f"no queue is bound to exchange {found.exchange!r} for routing key {found.routing_key!r}"
            gone = f"there is no queue {found.routing_key!r}"
            listener.returned(self._returned_id, f"{found.reply_text}: {bound}" if found.exchange else gone)


_METHOD, _TAG, _CONTENT = Struct(">I"), Struct(">QB"), Struct(">HHQH")
_DELIVER, _GET_OK, _GET_EMPTY = 60 << 16 | 60, 60 << 16 | 71, 60 << 16 | 72
_CHANNEL_CLOSE, _CONNECTION_CLOSE = 20 << 16 | 40, 10 << 16 | 50


@dataclass(slots=True)
class Arrived:
    """One delivery as it came.

    Attributes:
        tag: its delivery tag.
        redelivered: whether it was delivered before, to anybody.
        consumer: the tag of the consumer that it was pushed to; empty where it was asked for.
        routing_key: with which it came into the queue.
        flags: which properties it has, as on the wire.
        written: those properties, as on the wire.
        properties: the same, decoded.
        body: all of it.
    """

    tag: int
    redelivered: bool
    consumer: str
    routing_key: str
    flags: int = 0
    written: bytes = b""
    properties: Properties = field(default_factory=Properties)
    body: bytes = b""


class DeliveryListener(Protocol):
    """Who hears what arrives on a channel. What it raises ends the connection."""

    def delivered(self, arrived: Arrived) -> None:
        """A message has arrived, pushed or asked for."""

    def empty(self) -> None:
        """The queue that was asked has no message."""

    def closed(self, reason: str) -> None:
        """The broker closes the channel or the whole connection."""


class DeliveryParser:
    """What arrives on one connection."""

    def __init__(self, listener: DeliveryListener) -> None:
        self._listener = listener
        self._channel = -1
        self._open: Arrived | None = None
        self._missing = 0
        self._parts: list[bytes] = []
        self.feed = FrameSplitter(self._take).feed

    def listen(self, *, channel: int) -> None:
        """From now on the listener hears of this channel."""
        self._channel = channel

    def _take(self, kind: int, channel: int, size: int, data: bytes, start: int) -> bool:
        """Whether the frame is of a delivery."""
        if channel != self._channel:
            if channel == 0 and kind == METHOD:
                self._notice_close(data, start, size)
            return False
        payload = start + PAYLOAD
        if kind == METHOD:
            return self._take_method(data, start, size)
        if self._open is None:
            return False
        if kind == HEADER:
            self._take_header(self._open, data[payload : payload + size])
        else:
            self._parts.append(data[payload : payload + size])
            self._missing -= size
        if self._missing <= 0:
            self._end(self._open)
        return True

    def _take_method(self, data: bytes, start: int, size: int) -> bool:
        payload = start + PAYLOAD
        (method,) = _METHOD.unpack_from(data, payload)
        if method == _DELIVER:
            place = payload + 5
            behind = place + data[payload + 4]
            self._begin(data[place:behind].decode(), data, behind)
        elif method == _GET_OK:
            self._begin("", data, payload + 4)
        elif method == _GET_EMPTY:
            self._listener.empty()
        else:
            self._notice_close(data, start, size)
            return False
        return True

    def _begin(self, consumer: str, data: bytes, position: int) -> None:
        """A message follows: its tag, whether it was redelivered, the exchange and the routing key are here."""
        tag, redelivered = _TAG.unpack_from(data, position)
        place = position + 9
        place += data[place] + 1
        routing_key = data[place + 1 : place + 1 + data[place]].decode(errors="backslashreplace")
        self._open = Arrived(tag, bool(redelivered & 1), consumer, routing_key)
        self._missing, self._parts = 1, []  # until its header says more

    def _take_header(self, arrived: Arrived, payload: bytes) -> None:
        _, _, self._missing, arrived.flags = _CONTENT.unpack_from(payload)
        arrived.written = payload[_CONTENT.size :]
        arrived.properties = decode.read(arrived.flags, arrived.written)

    def _end(self, arrived: Arrived) -> None:
        arrived.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._open, self._parts = None, []
        self._listener.delivered(arrived)

    def _notice_close(self, data: bytes, start: int, size: int) -> None:
        (method,) = _METHOD.unpack_from(data, start + PAYLOAD)
        if method in (_CHANNEL_CLOSE, _CONNECTION_CLOSE):
            found = frame.unmarshal(data[start : start + size + FRAME_OVERHEAD])[2]
            assert isinstance(found, commands.Channel.Close | commands.Connection.Close)  # noqa: S101 - by its number
            self._listener.closed(f"{found.reply_code} {found.reply_text}")
