"""Claimed rows, read from the driver: the one place where the relay sees thousands of values a second."""

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
class Claimed:
    """A row of the outbox that this relay holds locked; `unreadable` says why it cannot be published as it is."""

    position: int
    attempts: int
    message: Message
    expires_at: datetime | None = None
    discard_unroutable: bool = False
    due_at: datetime | None = None
    reply: str | None = None
    unreadable: str | None = None


def read(rows: Iterable[tuple[Any, ...]]) -> list[Claimed]:
    """Rows as `statements.claim.CLAIMED` lists their columns."""
    claimed = []
    for row in rows:
        position, attempts, id_, type_, payload, key, topic, headers, correlation, causation, created = row[:11]
        content_type, encoding, expires_at, discard, due_at, reply = row[11:]
        carried, unreadable = (_NO_HEADERS, None) if headers == b"{}" else _headers(headers)
        if type(payload) is not bytes:  # SQLite stores whatever it is given
            payload, unreadable = b"", "its payload is not bytes"
        message = unchecked(
            id_, type_, payload, key, topic, carried, correlation, causation, created, content_type, encoding
        )
        claimed.append(Claimed(position, attempts, message, expires_at, discard, due_at, reply, unreadable))
    return claimed


def _headers(stored: Any) -> tuple[dict[str, object], str | None]:
    try:
        return codec.decode_headers(stored), None
    except Exception as error:  # noqa: BLE001 - whatever is there, it stops no other row
        return _NO_HEADERS, f"its headers cannot be read: {type(error).__name__}"


async def fetch(
    connection: AsyncConnection, statement: Select[Any], parameters: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """The statement's rows as tuples, in the transaction of the connection.

    On PostgreSQL they come straight from the driver, in its binary format: SQLAlchemy's result objects would cost
    more than everything else that the relay does with a row.

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
