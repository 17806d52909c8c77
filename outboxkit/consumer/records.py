"""The records of a consumer beside the inbox: starts of messages that may kill it, and dead letters.

Each is written in a transaction of its own, and a dead letter always before the ack.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Executable, Row
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.consumer import decisions
from outboxkit.consumer.key_queues import Arrival
from outboxkit.consumer.measurements import ConsumerMeasurements
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.consumer.transactions import blame_database
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import Outcome
from outboxkit.runtime.outage import Outage, what_is_away

LAST_WORD_SECONDS = 2
"""A stop that is at its end waits so long for the database."""


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """The starts and failures of a message of a queue.

    Attributes:
        starts: those that have not ended, with the one that was just recorded.
        failures: attempts that failed in a consumer in order.
        first_failed_at: when the first of them did.
    """

    starts: int = 0
    failures: int = 0
    first_failed_at: datetime | None = None


_STARTED_ONCE = CrashRecord(starts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The crash records and dead letters of one queue. An outage is waited out.

    Every method returns None, or False, if `stop` came during an outage.

    Attributes:
        engine: of the database that has them.
        queue: whose they are.
        outage: waits while the database is away.
        outcomes: dead letters are counted in it.
        reports: hears of dead letters.
        measurements: records them.
    """

    engine: AsyncEngine
    queue: str
    outage: Outage
    outcomes: Counter[Outcome]
    reports: Reports
    measurements: ConsumerMeasurements

    async def start(self, message_id: str, stop: asyncio.Event) -> CrashRecord | None:
        """Record that a handler of the message is about to be called."""
        statement = statements.inbox.start(self.engine.dialect.name)
        rows = await self._write(statement, self._place(message_id), stop)
        return CrashRecord(*rows[0]) if rows else None

    async def fail(self, message_id: str, stop: asyncio.Event) -> CrashRecord | None:
        """Record that the start has ended, with one more failure."""
        statement = statements.inbox.fail(self.engine.dialect.name)
        rows = await self._write(statement, self._place(message_id), stop)
        return CrashRecord(0, *rows[0]) if rows else None

    async def forget(self, message_id: str, stop: asyncio.Event) -> bool:
        """Record that the start has ended, and that nothing more is to be known."""
        return await self._write(statements.inbox.forget_attempt(), self._place(message_id), stop) is not None

    async def buried(self, message_id: str, stop: asyncio.Event) -> frozenset[str | None] | None:
        """The handlers that have given the message up: a process that ended before its ack has buried it."""
        rows = await self._write(statements.dead.buried(), self._place(message_id), stop)
        return None if rows is None else frozenset(row.handler for row in rows)

    async def call_off(self, message_id: str, known: CrashRecord, stop: asyncio.Event) -> None:
        """Record that the start has ended because the process was told to stop, as far as that can be done soon."""
        statement: Executable = statements.inbox.forget_attempt()
        place = self._place(message_id)
        if known != _STARTED_ONCE:
            statement, place = statements.inbox.call_off(), {f"at_{name}": value for name, value in place.items()}
        with suppress(TimeoutError, SQLAlchemyError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._write(statement, place, stop)

    async def bury(self, arrival: Arrival, failed: Failed, stop: asyncio.Event, *, attempts: int) -> bool:
        """Put the message among the dead letters, once for each handler, count them and say so.

        If the database refuses it, the parts that are not needed to handle it again are left out.

        Raises:
            Exception: it could not be stored even so.
        """
        delivery = arrival.delivery
        rows = [
            decisions.dead_letter(
                arrival.message,
                decision,
                queue=self.queue,
                handler=handler,
                attempts=attempts,
                required=delivery.delivery_headers.handlers,
                first_failed_at=delivery.delivery_headers.first_failed_at or arrival.first_failed_at,
            )
            for handler, decision in sorted(failed.items(), key=lambda each: each[0] or "")
        ]
        statement = statements.dead.bury_once(self.engine.dialect.name)
        try:
            written = await self._write(statement, rows, stop)
        except Exception as error:
            if what_is_away(error, passing=TRANSIENT):
                raise
            bare = [decisions.bare(row, error) for row in rows]
            written = await self._write(statement, bare, stop)
        if written is None:
            return False
        self.outcomes.update(decision.outcome for decision in failed.values())
        self.measurements.failed(arrival.message, failed)
        self.reports.failed("message set aside as a dead letter", arrival.message, failed, attempt=attempts)
        return True

    def _place(self, message_id: str) -> dict[str, str]:
        return {"queue": self.queue, "message_id": message_id}

    async def _write(self, statement: Executable, parameters: Any, stop: asyncio.Event) -> Sequence[Row[Any]] | None:
        """The rows that the statement returns; None if `stop` came during an outage."""
        return await self.outage.ride_out(partial(self._execute, statement, parameters), stop)

    async def _execute(self, statement: Executable, parameters: Any) -> Sequence[Row[Any]]:
        try:
            async with self.engine.begin() as connection:
                result = await connection.execute(statement, parameters)
                return result.all() if result.returns_rows else ()
        except DBAPIError as error:
            await blame_database(self.engine, error)
            raise
