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

from outboxkit import codec
from outboxkit.message import Message, unchecked
from outboxkit.moments import read_bounded

_NO_HEADERS: dict[str, object] = {}


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


def read(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedRow]:
    """Rows from tuples, in the order of `statements.claim.CLAIMED`."""
    batch = []
    for row in rows:
        position, attempts, id_, type_, payload, key, topic, headers, correlation, causation, created = row[:11]
        content_type, encoding, expires_at, discard, due_at, reply = row[11:]
        carried, unreadable = (_NO_HEADERS, None) if headers == b"{}" else _headers(headers)
        if type(payload) is not bytes:  # SQLite stores a value of any type
            payload, unreadable = b"", "its payload is not bytes"
        message = unchecked(
            id_, type_, payload, key, topic, carried, correlation, causation, created, content_type, encoding
        )
        batch.append(ClaimedRow(position, attempts, message, expires_at, discard, due_at, reply, unreadable))
    return batch


def _headers(stored: Any) -> tuple[dict[str, object], str | None]:
    try:
        return codec.decode_headers(stored), None
    except Exception as error:  # noqa: BLE001 - whatever is stored, it stops no other row
        return _NO_HEADERS, f"its headers cannot be read: {type(error).__name__}"


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
