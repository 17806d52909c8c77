"""A writer and a channel that keep what is written, and the frames in it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiormq.abc import ChannelFrame
from pamqp import commands, frame
from pamqp.header import ContentHeader


class Written:
    """As much of a StreamWriter as is used."""

    def __init__(self) -> None:
        self.bytes = b""
        self.closing = False

    def write(self, frames: bytes) -> None:
        assert not self.closing
        self.bytes += frames

    def is_closing(self) -> bool:
        return self.closing

    def take(self) -> list[Any]:
        """The frames since this was last asked."""
        left, self.bytes = self.bytes, b""
        return frames_in(left)


class Wire:
    """What `ConfirmChannel` uses of aiormq's channel, whose socket takes so many buffers by itself; 0: all."""

    number, is_closed = 1, False

    def __init__(self, frame_max: int = 131_072, *, buffers: int = 10) -> None:
        self.connection: Any = SimpleNamespace(connection_tune=SimpleNamespace(frame_max=frame_max))
        self.write_queue = asyncio.Queue[ChannelFrame](buffers)

    def take(self) -> list[Any]:
        """The frames since this was last asked."""
        found = []
        while not self.write_queue.empty():
            found += frames_in(self.write_queue.get_nowait().payload)
        return found

    def published(self) -> int:
        """The number of publishes among these frames."""
        return sum(isinstance(each, commands.Basic.Publish) for each in self.take())

    async def next_buffer(self) -> bytes:
        """The next buffer; it is written to the socket then."""
        written = await asyncio.wait_for(self.write_queue.get(), 5)
        written.drain()
        return written.payload

    async def next_ids(self) -> list[str]:
        """The ids in the next buffer."""
        headers = (each for each in frames_in(await self.next_buffer()) if isinstance(each, ContentHeader))
        return [header.properties.message_id for header in headers]


def frames_in(buffer: bytes) -> list[Any]:
    found = []
    while buffer:
        size, _, each = frame.unmarshal(buffer)
        buffer = buffer[size:]
        found.append(each)
    return found
