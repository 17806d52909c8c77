"""Taps between the socket and the client library, and the frames in the bytes that arrive (AMQP 0-9-1, section 4.2.3).

A tap takes frames out of the bytes: the parser of `confirms`, and that of `incoming`. All others go on to the client
library. Decision 13 has the reasons.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, Protocol

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands, frame
from yarl import URL

from outboxkit.brokers.rabbitmq.encode import BODY, END, FRAME_OVERHEAD, HEADER, METHOD

PAYLOAD = 7
"""Offset of the payload in a frame."""
HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, END))
FRAME_TYPES = (METHOD, HEADER, BODY, HEARTBEAT[0])
_FRAME, METHOD_NUMBER, CONTENT_HEADER = Struct(">BHI"), Struct(">I"), Struct(">HHQH")
CHANNEL_CLOSE, CONNECTION_CLOSE = 20 << 16 | 40, 10 << 16 | 50

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
        if kind == METHOD and METHOD_NUMBER.unpack_from(buffer, start)[0] == CONNECTION_CLOSE:
            _, _, close = frame.unmarshal(buffer[offset : offset + size + FRAME_OVERHEAD])
            if isinstance(close, commands.Connection.Close):
                self.close_code, self.close_reason = close.reply_code or 0, close.reply_text or ""
        return False
