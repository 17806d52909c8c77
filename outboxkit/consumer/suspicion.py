"""Messages that may have killed a consumer: each start is recorded, so that the one who did it is found."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Executable
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.outage import Outage

LAST_WORD_SECONDS = 2
"""How long a stop that is at its end waits for the database."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is recorded of a message of this queue.

    Attributes:
        starts: those that have not ended, with the one that was just recorded.
        failures: attempts that failed in a consumer in order.
        first_failed_at: when the first of them did.
    """

    starts: int = 0
    failures: int = 0
    first_failed_at: datetime | None = None


_STARTED_ONCE = Known(starts=1)


class Suspicion:
    """The records of one queue; each change is a transaction of its own. An outage is waited out.

    Every method returns None where `stop` came during an outage.
    """

    def __init__(self, engine: AsyncEngine, *, queue: str, outage: Outage) -> None:
        self._engine = engine
        self._queue = queue
        self._outage = outage

    async def start(self, message_id: str, stop: asyncio.Event) -> Known | None:
        """Record that a handler of the message is about to be called."""

        async def write() -> Known:
            async with self._engine.begin() as connection:
                statement = statements.attempts.start(connection.dialect.name)
                row = (await connection.execute(statement, self._place(message_id))).one()
                return Known(row.starts, row.failures, row.first_failed_at)

        return await self._outage.ride_out(write, stop)

    async def fail(self, message_id: str, stop: asyncio.Event) -> Known | None:
        """Record that the start has ended, with one more failure."""

        async def write() -> Known:
            async with self._engine.begin() as connection:
                statement = statements.attempts.fail(connection.dialect.name)
                row = (await connection.execute(statement, self._place(message_id))).one()
                return Known(0, row.failures, row.first_failed_at)

        return await self._outage.ride_out(write, stop)

    async def forget(self, message_id: str, stop: asyncio.Event) -> bool | None:
        """Record that the start has ended, and that nothing more is to be known."""

        async def write() -> bool:
            async with self._engine.begin() as connection:
                await connection.execute(statements.attempts.forget(), self._place(message_id))
            return True

        return await self._outage.ride_out(write, stop)

    async def call_off(self, message_id: str, known: Known, stop: asyncio.Event) -> None:
        """Record that the start has ended because the process was told to stop, as far as that can be done soon."""
        if known == _STARTED_ONCE:
            statement: Executable = statements.attempts.forget()
            place = self._place(message_id)
        else:
            statement = statements.attempts.call_off()
            place = {f"at_{name}": value for name, value in self._place(message_id).items()}

        async def write() -> bool:
            async with self._engine.begin() as connection:
                await connection.execute(statement, place)
            return True

        with suppress(TimeoutError, SQLAlchemyError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._outage.ride_out(write, stop)

    def _place(self, message_id: str) -> dict[str, str]:
        return {"queue": self._queue, "message_id": message_id}
