"""The starts and failures of a queue's messages, and its dead letters, each in a transaction of its own.

A start that has no end has ended the process: that is how a crash is counted. A dead letter is written before the ack.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Executable, Row
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import schema, statements
from outboxkit.consumer import decisions
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.consumer.routing import Arrival
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.errors.failures import printable
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.message import NAME_LIMIT, Message, storable
from outboxkit.runtime.outage import Outage, what_is_away


class UnusableTables(SchemaError):
    """The tables were dropped, changed or replaced while the consumer ran."""


class UnusableSessions(ConfigurationError):
    """A pooler came between while the consumer ran: its sessions do not keep their state any more."""


UNUSABLE = (UnusableTables, UnusableSessions)
"""Errors for which no message is to blame, and with which the consumer ends."""


async def blame_database(engine: AsyncEngine, cause: BaseException | None) -> None:
    """Check outboxkit's tables, and for a pooler in front of them, if this error may come from them.

    Raises:
        UnusableTables, UnusableSessions: they are to blame.
    """
    try:
        await schema.blame(engine, cause)
    except SchemaError as error:
        raise UnusableTables(str(error)) from cause
    except ConfigurationError as error:
        raise UnusableSessions(str(error)) from cause


LAST_WORD_SECONDS = 2
"""The limit for a write that may fail: the note of a retry, and the undoing of a start at a stop."""


NOTED_FROM, MOST_NOTED, ERROR_SIGNS = 2, 1000, 300
"""A retry is noted from this failed attempt on, of so many messages of a queue, each with an error of this length."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A row of `outboxkit_attempt`: the starts and failures of a message of a queue.

    Attributes:
        starts: those that have not ended, with the one that was just recorded.
        failures: attempts that failed in a consumer in order.
        first_failed_at: when the first of them did.
    """

    starts: int = 0
    failures: int = 0
    first_failed_at: datetime | None = None


_STARTED_ONCE = AttemptRecord(starts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The attempt records and dead letters of one queue. An outage is waited out.

    Every method returns None, or False, if `stop` came during an outage.
    """

    engine: AsyncEngine
    queue: str
    outage: Outage
    reports: Reports

    async def start(self, message_id: str, stop: asyncio.Event) -> AttemptRecord | None:
        """Record that a handler of the message is about to be called."""
        statement = statements.attempts.start(self.engine.dialect.name)
        rows = await self._write(statement, self._place(message_id), stop)
        return AttemptRecord(*rows[0]) if rows else None

    async def fail(self, message_id: str, failed: int, stop: asyncio.Event) -> AttemptRecord | None:
        """Record that the start has ended, with the failure of this number, from 1."""
        statement = statements.attempts.fail(self.engine.dialect.name)
        rows = await self._write(statement, self._place(message_id) | {"failed": failed}, stop)
        return AttemptRecord(0, *rows[0]) if rows else None

    async def forget(self, *message_ids: str, stop: asyncio.Event) -> bool:
        """Record that the starts of these messages have ended, and that nothing more is to be known."""
        statement = statements.attempts.forget_attempts(self.engine.dialect.name)
        return await self._write(statement, {"queue": self.queue, "ids": sorted(message_ids)}, stop) is not None

    async def buried(self, message_id: str, stop: asyncio.Event) -> frozenset[str | None] | None:
        """The handlers for which the message is a dead letter already: a process ended between that and the ack."""
        rows = await self._write(statements.dead.buried(), self._place(message_id), stop)
        return None if rows is None else frozenset(row.handler for row in rows)

    async def note_retry(self, arrival: Arrival, failed: Failed, attempt: int, delay: timedelta) -> None:
        """Note for operators that the message is tried again, from its second failed attempt on.

        An error of the database is ignored, also an outage: the next failure notes the message again.
        """
        message = arrival.message
        if attempt < NOTED_FROM or not isinstance(message, Message):
            return
        names, reasons = sorted(filter(None, failed)), [each.error for each in failed.values()]
        row = self._place(message.id) | {
            "handler": storable(", ".join(names))[:NAME_LIMIT] or None,
            "type": storable(message.type),
            "key": message.key and storable(message.key),
            "attempt": attempt,
            "error": storable(printable(reasons[0] or "-", ERROR_SIGNS)),
            "next_at": self.reports.now() + delay,
            "most": MOST_NOTED,
        }
        with suppress(SQLAlchemyError, OSError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._execute(statements.attempts.note_retry(self.engine.dialect.name), row)

    async def call_off(self, message_id: str, known: AttemptRecord, stop: asyncio.Event) -> None:
        """Undo the start of a message at a stop, within two seconds if possible."""
        row = {"at_queue": self.queue, "at_message_id": message_id}
        with suppress(TimeoutError, SQLAlchemyError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                if known == _STARTED_ONCE:
                    await self.forget(message_id, stop=stop)
                else:
                    await self._write(statements.attempts.call_off(), row, stop)

    async def bury(self, arrival: Arrival, failed: Failed, stop: asyncio.Event, *, attempts: int) -> bool:
        """Put the message among the dead letters, once for each handler, count them and say so.

        If the database refuses it, the parts that are not needed to handle it again are left out.

        Raises:
            Exception: it could not be stored even so.
        """
        delivery = arrival.delivery
        rows = [
            decisions.dead_letter_row(
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
