"""Connections to PostgreSQL for outboxkit's own processes."""

import os
import socket
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection


class Connection(AsyncConnection[Any]):
    """A connection to PostgreSQL that is not freed while a task that a handler left behind still waits in it.

    Psycopg's own would be, and what that task does next would crash the process.
    """

    async def close(self) -> None:
        """Close it; first hang up if a task still waits for an answer, which gets an error instead."""
        if not self.closed and self.lock.locked():
            with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as wire:
                wire.shutdown(socket.SHUT_RDWR)
        async with self.lock:
            await super().close()
