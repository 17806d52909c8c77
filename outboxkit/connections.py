"""Connections to PostgreSQL for outboxkit's own processes."""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection

_CLOSING = set[asyncio.Task[None]]()
"""Tasks that close a connection. Without this reference the event loop might drop them."""


class Connection(AsyncConnection[Any]):
    """A connection to PostgreSQL that is not freed while a task of a handler still waits in it.

    Psycopg's own would be freed, and the task's next call would crash the process.
    """

    async def close(self) -> None:
        """Close it. If a task still waits for an answer, hang up: that task gets an error, and then it is closed."""
        if self.closed or not self.lock.locked():
            await super().close()
            return
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        closing = asyncio.create_task(self._close_when_free())
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)
        await asyncio.shield(closing)  # it goes on if this task is cancelled

    async def _close_when_free(self) -> None:
        async with self.lock:
            await super().close()
