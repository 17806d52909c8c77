"""Sessions of every kind on every driver that an application may use, on PostgreSQL."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

SYNC = ("psycopg", "psycopg2")
ASYNC = ("psycopg", "asyncpg")
KINDS = [
    *((driver, kind) for driver in SYNC for kind in (Session, scoped_session)),
    *((driver, kind) for driver in ASYNC for kind in (AsyncSession, async_scoped_session)),
]
ONE_OF_EACH = [("psycopg", Session), ("psycopg2", Session), ("psycopg", AsyncSession), ("asyncpg", AsyncSession)]


def names(pair: Any) -> str:
    """The name of a driver and a kind, for pytest."""
    return f"{pair[0]}-{pair[1].__name__}"


class Driver:
    """An application's engine, and its sessions of one kind.

    Attributes:
        sessions: the factory, as an application has it.
        is_async: whether its calls are awaited.
    """

    def __init__(self, url: str, driver: str, kind: Any, **options: Any) -> None:
        target = make_url(url).set(drivername=f"postgresql+{driver}")
        self.is_async = kind in (AsyncSession, async_scoped_session)
        self.kind = kind
        self.engine: Any = create_async_engine(target, **options) if self.is_async else create_engine(target, **options)
        self.sessions: Any = async_sessionmaker(self.engine) if self.is_async else sessionmaker(self.engine)

    def session(self) -> Any:
        """A new session; of a scoped kind, with a registry of its own."""
        match self.kind.__name__:
            case "scoped_session":
                return scoped_session(self.sessions)
            case "async_scoped_session":
                return async_scoped_session(self.sessions, scopefunc=asyncio.current_task)
        return self.sessions()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """A session in a transaction: committed at the end, rolled back after an error."""
        session = self.session()
        try:
            await done(session.begin())
            yield session
            await done(session.commit())
        finally:
            await done(session.close())

    async def on(self, session: Any, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a plain function on the session, as its kind has it."""
        if not self.is_async:
            return call(session, *arguments, **options)
        opened = session() if isinstance(session, async_scoped_session) else session
        return await opened.run_sync(call, *arguments, **options)

    async def within(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a plain function on a session in a transaction of its own, which is committed."""
        async with self.begin() as session:
            return await self.on(session, call, *arguments, **options)

    async def migrating(self, call: Callable[..., Any]) -> Any:
        """Call a plain function on a connection in a transaction, which is committed."""
        if isinstance(self.engine, AsyncEngine):
            async with self.engine.begin() as connection:
                return await connection.run_sync(call)
        engine: Engine = self.engine
        with engine.begin() as begun:
            return call(begun)


async def done(result: Any) -> Any:
    """The result of a session's method, sync or async."""
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def using(url: str, pair: tuple[str, Any], **options: Any) -> AsyncIterator[Driver]:
    """The driver for a database; its connections are closed at the end."""
    driver = Driver(url, *pair, **options)
    try:
        yield driver
    finally:
        await done(driver.engine.dispose())
