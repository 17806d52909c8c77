"""Deliveries, taken out of the bytes that arrive on a connection. Pure.

Basic.Deliver, Basic.GetOk and Basic.GetEmpty of one channel, with the contents that follow them, are handed to a
`DeliveryListener` and go no further; everything else is passed on. Why they do not take the client's own way is in
docs/decisions/0020-deliveries-decoded-in-bulk.md.
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol

from pamqp import commands, frame

from outboxkit.brokers.rabbitmq import properties
from outboxkit.brokers.rabbitmq.cutting import PAYLOAD, Cutter
from outboxkit.brokers.rabbitmq.frames import FRAME_OVERHEAD, HEADER, METHOD
from outboxkit.brokers.rabbitmq.properties import Properties

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


class Deliveries:
    """What arrives on one connection."""

    def __init__(self, listener: DeliveryListener) -> None:
        self._listener = listener
        self._channel = -1
        self._open: Arrived | None = None
        self._missing = 0
        self._parts: list[bytes] = []
        self.feed = Cutter(self._take).feed

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
        arrived.properties = properties.read(arrived.flags, arrived.written)

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
