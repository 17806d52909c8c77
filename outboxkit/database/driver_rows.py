"""Rows as the driver reads them: for what handles thousands of values a second.

SQLAlchemy's result objects would cost more than all other work on such a row.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from typing import Any

import psycopg
from psycopg import DataError
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

Rows = Sequence[tuple[Any, ...]]


async def fetch(
    connection: AsyncConnection, statement: Select[Any], parameters: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """The statement's rows as tuples, in the connection's transaction.

    On PostgreSQL they come straight from the driver, in its binary format. The statement's text is kept for good.

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy itself would.
    """
    if connection.dialect.driver != "psycopg":
        return [tuple(row) for row in await connection.execute(statement, dict(parameters))]
    driver = await _driver(connection)
    text = _text(statement, connection.dialect)
    async with _errors_of_sqlalchemy(connection, driver, text), driver.cursor(binary=True) as cursor:
        await cursor.execute(text.encode(), dict(parameters))
        return await cursor.fetchall()


async def pages(
    connection: AsyncConnection, statement: Select[Any], parameters: Mapping[str, object], *, name: str, size: int
) -> AsyncGenerator[Rows]:
    """The statement's rows as tuples, up to `size` at a time, by a cursor of the connection's transaction.

    No more of them are in memory at once. On PostgreSQL `name` is the cursor's: one of its own in this transaction.

    Raises:
        sqlalchemy.exc.DBAPIError: as SQLAlchemy itself would.
    """
    if connection.dialect.driver != "psycopg":
        options = {"yield_per": size}
        async with connection.stream(statement, dict(parameters), execution_options=options) as result:
            async for page in result.partitions():
                yield [tuple(row) for row in page]
        return
    driver = await _driver(connection)
    text = str(statement.compile(dialect=connection.dialect))
    async with _errors_of_sqlalchemy(connection, driver, text), driver.cursor(name, binary=True) as cursor:
        await cursor.execute(text.encode(), dict(parameters))
        while page := await cursor.fetchmany(size):
            yield page


async def _driver(connection: AsyncConnection) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    driver = of_psycopg((await connection.get_raw_connection()).driver_connection)
    read_bounded(driver)
    return driver


def of_psycopg(driver: object) -> psycopg.AsyncConnection[Any]:
    """The driver's own connection.

    Raises:
        TypeError: it is another driver's.
    """
    if not isinstance(driver, psycopg.AsyncConnection):
        raise TypeError(f"the connection's driver is {driver!r}; psycopg's AsyncConnection is accepted")
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
        raise DBAPIError.instance(
            text, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=driver.closed
        ) from error


@cache
def _text(statement: Select[Any], dialect: Any) -> str:
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
