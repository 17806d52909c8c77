"""Claimed rows, read from the driver: the one place that handles thousands of values a second."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import psycopg
from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit.envelope import from_claimed
from outboxkit.message import Message
from outboxkit.moments import read_bounded


@dataclass(slots=True, eq=False)
class ClaimedRow:
    """An outbox row that this relay holds locked. `unreadable` is the reason for which it cannot be published."""

    position: int
    attempts: int
    message: Message
    expires_at: datetime | None = None
    discard_unroutable: bool = False
    due_at: datetime | None = None
    reply: str | None = None
    unreadable: str | None = None


def read_claimed(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedRow]:
    """Rows from tuples, in the order of `statements.claim.CLAIMED`."""
    batch = []
    for position, attempts, *values, expires_at, discard, due_at, reply in rows:
        message, unreadable = from_claimed(values)
        batch.append(ClaimedRow(position, attempts, message, expires_at, discard, due_at, reply, unreadable))
    return batch


async def fetch(
    connection: AsyncConnection, statement: Select[Any], parameters: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """The statement's rows as tuples, in the connection's transaction.

    On PostgreSQL they come straight from the driver, in its binary format. SQLAlchemy's result objects would cost more
    than all other work of the relay on a row.

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy itself would.
    """
    if connection.dialect.driver != "psycopg":
        return [tuple(row) for row in await connection.execute(statement, dict(parameters))]
    driver = (await connection.get_raw_connection()).driver_connection
    if not isinstance(driver, psycopg.AsyncConnection):
        raise TypeError(f"the connection's driver is {driver!r}; psycopg's AsyncConnection is accepted")
    read_bounded(driver)
    text = _text(statement, connection.dialect)
    try:
        async with driver.cursor(binary=True) as cursor:
            await cursor.execute(text.encode(), dict(parameters))
            return await cursor.fetchall()
    except psycopg.Error as error:
        if driver.closed:
            await connection.invalidate(error)
        raise DBAPIError.instance(
            text, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=driver.closed
        ) from error


@cache
def _text(statement: Select[Any], dialect: Any) -> str:
    return str(statement.compile(dialect=dialect))
