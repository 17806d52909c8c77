"""Rows as the driver reads them: for what handles thousands of values a second.

SQLAlchemy's result objects would cost more than all other work on such a row.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any

import psycopg
from psycopg import AsyncClientCursor, DataError
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import Connection, Delete, Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit.database import silence
from outboxkit.database.sqlalchemy_asyncio import await_
from outboxkit.errors.sqlstates import note_role

DriverRows = Sequence[tuple[Any, ...]]


async def fetch(
    connection: AsyncConnection, statement: Select[Any], parameters: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """The statement's rows as tuples, in the connection's transaction.

    On PostgreSQL they come straight from the driver, in its binary format. The statement's text is kept.
    """
    if connection.dialect.driver != "psycopg":
        return [tuple(row) for row in await connection.execute(statement, dict(parameters))]
    driver = driver_of(connection)
    text = _text(statement, connection.dialect)
    async with _errors_of_sqlalchemy(connection, driver, text), driver.cursor(binary=True) as cursor:
        await cursor.execute(text.encode(), dict(parameters))
        return await cursor.fetchall()


async def execute_and_commit(
    connection: AsyncConnection, statement: Delete, parameters: Mapping[str, Sequence[int]]
) -> None:
    """Execute the last statement of the connection's transaction, and commit: on PostgreSQL in one round trip.

    There the driver writes the parameters, which are lists of numbers, into the text: only so it sends two statements
    at once. As texts of arrays they take a fifth of the time of the driver's own lists.
    """
    if connection.dialect.driver != "psycopg":
        await connection.execute(statement, dict(parameters))
        await connection.commit()
        return
    driver = driver_of(connection)
    text = f"{_text(statement, connection.dialect)}; COMMIT"
    arrays = {name: f"{{{','.join(map(str, numbers))}}}" for name, numbers in parameters.items()}
    async with _errors_of_sqlalchemy(connection, driver, text), AsyncClientCursor(driver) as cursor:
        await cursor.execute(text.encode(), arrays)


def first(connection: Connection, statement: Any, parameters: Mapping[str, object]) -> tuple[Any, ...] | None:
    """The first row of a statement in the connection's transaction; None if there is no row.

    It comes straight from psycopg. The statement's text is kept.
    """
    driver: Any = connection.connection.driver_connection
    text = _text(statement, connection.dialect)
    try:
        if isinstance(driver, psycopg.AsyncConnection):
            return await_(_first(driver, text, parameters))
        row: tuple[Any, ...] | None = driver.cursor(row_factory=tuple_row).execute(text.encode(), parameters).fetchone()
    except psycopg.Error as error:
        if driver.closed:
            silence.note_end()  # a server that has ended it may have ended others of the pool
            connection.invalidate(error)
        raise _of_sqlalchemy(error, text, connection, driver) from error
    except asyncio.CancelledError as error:
        connection.invalidate(error)  # what the server has done is not known
        raise
    return row


async def _first(
    driver: psycopg.AsyncConnection[Any], text: str, parameters: Mapping[str, object]
) -> tuple[Any, ...] | None:
    cursor = driver.cursor(row_factory=tuple_row)  # the connection's own may be another: it is the application's
    return await (await cursor.execute(text.encode(), parameters)).fetchone()


async def pages(
    connection: AsyncConnection, statement: Select[Any], parameters: Mapping[str, object], *, name: str, size: int
) -> AsyncGenerator[DriverRows]:
    """The statement's rows as tuples, up to `size` at a time, by a cursor of the connection's transaction.

    No more of them are in memory at once. On PostgreSQL `name` is the cursor's: one of its own in this transaction.
    """
    if connection.dialect.driver != "psycopg":
        options = {"yield_per": size}
        async with connection.stream(statement, dict(parameters), execution_options=options) as result:
            async for page in result.partitions():
                yield [tuple(row) for row in page]
        return
    driver = driver_of(connection)
    text = str(statement.compile(dialect=connection.dialect))
    async with _errors_of_sqlalchemy(connection, driver, text), driver.cursor(name, binary=True) as cursor:
        await cursor.execute(text.encode(), dict(parameters))
        while page := await cursor.fetchmany(size):
            yield page


def driver_of(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """The driver's own connection, which reads timestamps bounded. It must be open: `await ...connect()` made it.

    Raises:
        TypeError: it is another driver's.
    """
    opened = connection.sync_connection  # asked here, and not by a coroutine of SQLAlchemy's, which costs a greenlet
    driver = opened.connection.driver_connection if opened is not None else None
    if not isinstance(driver, psycopg.AsyncConnection):
        raise TypeError(f"the connection's driver is {driver!r}; psycopg's AsyncConnection is accepted")
    read_bounded(driver)
    return driver


@asynccontextmanager
async def _errors_of_sqlalchemy(
    connection: AsyncConnection, driver: psycopg.AsyncConnection[Any], text: str
) -> AsyncIterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if driver.closed:
            await connection.invalidate(error)
        raise _of_sqlalchemy(error, text, connection, driver) from error


def _of_sqlalchemy(
    error: psycopg.Error, text: str, connection: Connection | AsyncConnection, driver: Any
) -> BaseException:
    converted = DBAPIError.instance(
        text, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=driver.closed
    )
    note_role(converted, connection.engine.url.query, driver)
    return converted


@lru_cache(maxsize=256)  # an application may have an engine, and so a dialect, for each of its tenants
def _text(statement: Any, dialect: Any) -> str:
    return str(statement.compile(dialect=dialect))


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_TIMESTAMPTZ = 1184
"""The type's number in PostgreSQL's catalogue."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECONDS = Struct(">q").unpack


class BoundedBinaryLoader(Loader):
    """Reads the binary format: microseconds since 2000, whatever the session's time zone."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        """The moment in UTC."""
        (microseconds,) = _MICROSECONDS(data)
        try:
            return _EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            return LAST if microseconds > 0 else FIRST


class BoundedTextLoader(TimestamptzLoader):
    """Reads the text format."""

    def load(self, data: Buffer) -> datetime:
        """The moment in UTC."""
        try:
            return super().load(data).astimezone(UTC)
        except (DataError, OverflowError):
            text = bytes(data)
            return FIRST if text.startswith((b"-", b"0001-")) or text.endswith(b"BC") else LAST


def read_bounded(driver: Any) -> None:
    """Make a psycopg connection load timestamps this way. A repeated call costs next to nothing."""
    adapters = driver.adapters
    if adapters.get_loader(_TIMESTAMPTZ, Format.BINARY) is not BoundedBinaryLoader:
        adapters.register_loader(_TIMESTAMPTZ, BoundedBinaryLoader)
        adapters.register_loader(_TIMESTAMPTZ, BoundedTextLoader)
