"""What a consumer records beside handling: starts of messages that may kill it, and dead letters.

Each is written in a transaction of its own, and a dead letter always before the ack.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.consumer import decisions
from outboxkit.consumer.key_queues import Arrival
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.inbox import Outcome
from outboxkit.outage import Outage, what_is_away
from outboxkit.sqlstates import TRANSIENT

LAST_WORD_SECONDS = 2
"""How long a stop that is at its end waits for the database."""


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """What is recorded of a message of this queue.

    Attributes:
        starts: those that have not ended, with the one that was just recorded.
        failures: attempts that failed in a consumer in order.
        first_failed_at: when the first of them did.
    """

    starts: int = 0
    failures: int = 0
    first_failed_at: datetime | None = None


_STARTED_ONCE = CrashRecord(starts=1)


class CrashRecords:
    """The records of one queue; each change is a transaction of its own. An outage is waited out.

    Every method returns None where `stop` came during an outage.
    """

    def __init__(self, engine: AsyncEngine, *, queue: str, outage: Outage) -> None:
        self._engine = engine
        self._queue = queue
        self._outage = outage

    async def start(self, message_id: str, stop: asyncio.Event) -> CrashRecord | None:
        """Record that a handler of the message is about to be called."""

        async def write() -> CrashRecord:
            async with self._engine.begin() as connection:
                statement = statements.inbox.start(connection.dialect.name)
                row = (await connection.execute(statement, self._place(message_id))).one()
                return CrashRecord(row.starts, row.failures, row.first_failed_at)

        return await self._outage.ride_out(write, stop)

    async def fail(self, message_id: str, stop: asyncio.Event) -> CrashRecord | None:
        """Record that the start has ended, with one more failure."""

        async def write() -> CrashRecord:
            async with self._engine.begin() as connection:
                statement = statements.inbox.fail(connection.dialect.name)
                row = (await connection.execute(statement, self._place(message_id))).one()
                return CrashRecord(0, row.failures, row.first_failed_at)

        return await self._outage.ride_out(write, stop)

    async def forget(self, message_id: str, stop: asyncio.Event) -> bool | None:
        """Record that the start has ended, and that nothing more is to be known."""

        async def write() -> bool:
            async with self._engine.begin() as connection:
                await connection.execute(statements.inbox.forget(), self._place(message_id))
            return True

        return await self._outage.ride_out(write, stop)

    async def call_off(self, message_id: str, known: CrashRecord, stop: asyncio.Event) -> None:
        """Record that the start has ended because the process was told to stop, as far as that can be done soon."""
        if known == _STARTED_ONCE:
            statement: Executable = statements.inbox.forget()
            place = self._place(message_id)
        else:
            statement = statements.inbox.call_off()
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


class DeadLetterWriter:
    """Writes the dead letters of one queue, counts them and says so."""

    def __init__(
        self, engine: AsyncEngine, *, queue: str, outage: Outage, outcomes: Counter[Outcome], reports: Reports
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._outage = outage
        self._outcomes = outcomes
        self._reports = reports

    async def bury(self, arrival: Arrival, failed: Failed, stop: asyncio.Event, *, attempts: int) -> bool:
        """Put the message among the dead letters, once for each handler; False if `stop` came during an outage.

        What the database refuses is put there without what is not needed to handle it again.

        Raises:
            Exception: it could not be stored even so.
        """
        delivery = arrival.delivery
        rows = [
            decisions.dead_letter(
                delivery.message,
                decision,
                queue=self._queue,
                handler=handler,
                attempts=attempts,
                first_failed_at=delivery.delivery_headers.first_failed_at or arrival.first_failed_at,
            )
            for handler, decision in failed.items()
        ]
        try:
            written = await self._write(rows, stop)
        except Exception as error:
            if what_is_away(error, passing=TRANSIENT):
                raise
            written = await self._write([decisions.bare(row, error) for row in rows], stop)
        if not written:
            return False
        self._outcomes.update(decision.outcome for decision in failed.values())
        self._reports.failed("message set aside as a dead letter", delivery.message, failed, attempt=attempts)
        return True

    async def _write(self, rows: Sequence[dict[str, Any]], stop: asyncio.Event) -> bool:
        async def write() -> bool:
            async with self._engine.begin() as connection:
                await connection.execute(statements.dead.bury_once(), rows)
            return True

        return bool(await self._outage.ride_out(write, stop))
