"""The memory of a consumer's process: handlers start once there is room for the events that they get."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

ROOM = 4 * 1024 * 1024
"""Bytes of payloads that may be decoded at the same time in one process. They take `growth.GROWTH` times as much."""
SMALL = 16 * 1024
"""A payload up to so many bytes needs no room: there are no more of them at a time than transactions."""


class PayloadMemory:
    """The room for payloads that are decoded at the same time, shared by all queues of a process.

    Args:
        size: the bytes of payloads, once they are inflated; `growth.GROWTH` says how much memory they take.
    """

    def __init__(self, size: int = ROOM) -> None:
        self._size, self._taken = size, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def room(self, size: int, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Hold the room for a payload of so many bytes, once there is some. False if `stop` came before that.

        A payload that is larger than all of it waits until no other one is in work.
        """
        is_there = await self._take(size, stop)
        try:
            yield is_there
        finally:
            if is_there:
                self._give_back(size)

    async def _take(self, size: int, stop: asyncio.Event) -> bool:
        """Take so many bytes, in the order of the calls. False if `stop` came first."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._next()
        if turn.done():
            return True
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((turn, stopping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(size, turn)
            raise
        finally:
            stopping.cancel()
        if stop.is_set():
            self._leave(size, turn)
        return not stop.is_set()

    def _give_back(self, size: int) -> None:
        """Give back the bytes of `_take`."""
        self._taken -= size
        self._next()

    def _leave(self, size: int, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self._give_back(size)
        else:
            self._waiting.remove((size, turn))
            self._next()

    def _next(self) -> None:
        while self._waiting and (not self._taken or self._taken + self._waiting[0][0] <= self._size):
            size, turn = self._waiting.popleft()
            self._taken += size
            turn.set_result(None)
