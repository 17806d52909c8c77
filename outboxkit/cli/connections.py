"""Connections of a command to its database, closed when it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import schema
from outboxkit.database.session_settings import set_in_sessions
from outboxkit.runtime import compose, process
from outboxkit.runtime.settings import Settings
from outboxkit.statements.dialects import is_server

T = TypeVar("T")


@asynccontextmanager
async def connected(
    url: str | Settings, command: str, *, pool_size: int = 5, only_reads: bool = False
) -> AsyncIterator[AsyncEngine]:
    """An engine whose sessions are named after the command. One that `only_reads` keeps no writer of SQLite waiting.

    On PostgreSQL it reads committed rows, whatever the database has as its default: it sees what it has waited for.
    """
    text = compose.database_url(url) if isinstance(url, Settings) else url
    engine = process.engine(text, name=f"outboxkit {command}", pool_size=pool_size, only_reads=only_reads)
    if is_server(engine.dialect.name):
        set_in_sessions(engine.sync_engine, default_transaction_isolation="read committed")
    try:
        yield engine
    finally:
        await engine.dispose()


def in_transaction(settings: Settings, command: str, work: Callable[[Connection], T], *, only_reads: bool) -> T:
    """The result of `work` in one transaction, on tables that this version can use."""

    async def run() -> T:
        async with connected(settings, command, only_reads=only_reads) as engine, engine.begin() as connection:
            await connection.run_sync(schema.check)
            return await connection.run_sync(work)

    return asyncio.run(run())
