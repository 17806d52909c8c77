"""One transaction of a consumer: tried again if its failure says nothing about the message."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import schema, statements, tables
from outboxkit.database.transaction import HandlerSession
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.errors.sqlstates import CHECK_VIOLATION, CONFLICT, sqlstate_of
from outboxkit.inbox import BatchEntryFailed
from outboxkit.runtime.outage import Outage, jittered, pause, what_is_away
from outboxkit.runtime.threads import Threads

T = TypeVar("T")

LOST_CONNECTIONS = 5
"""The number of database connections that one message may lose while the database is up, before it is blamed."""
CONFLICTS = 5
"""The number of times a transaction is run again at once after a conflict, before that counts as a failure."""
PROBE_SECONDS, SOON_SECONDS = 15.0, 2.0
"""A database that does not answer for so long is away. The shorter limit follows a handler's own timeout."""
SILENT = TimeoutError("the database does not answer")


class UnusableTables(SchemaError):
    """The tables were dropped, changed or replaced while the consumer ran."""


class UnusableSessions(ConfigurationError):
    """A pooler came between while the consumer ran: its sessions do not keep their state any more."""


UNUSABLE = (UnusableTables, UnusableSessions)
"""Errors for which no message is to blame, and with which the consumer ends."""


async def blame_database(engine: AsyncEngine, cause: BaseException | None) -> None:
    """Look at outboxkit's tables and at a pooler in front of them if this error may come from them.

    Raises:
        UnusableTables, UnusableSessions: they are to blame.
    """
    try:
        await schema.blame(engine, cause)
    except SchemaError as error:
        raise UnusableTables(str(error)) from cause
    except ConfigurationError as error:
        raise UnusableSessions(str(error)) from cause


def is_cancelled() -> bool:
    """Whether the current task is cancelled: the consumer ends. Handlers have tasks of their own, and fail there."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Transactions:
    """Runs work in sessions of its own, and waits while the database is away."""

    def __init__(self, engine: AsyncEngine, outage: Outage, threads: Threads | None = None) -> None:
        # A task that a handler left behind must not use its session any more: it would keep a connection for ever.
        self._engine = engine
        self._sessions = async_sessionmaker(
            engine, sync_session_class=HandlerSession, expire_on_commit=False, close_resets_only=False
        )
        self._outage = outage
        self._threads = threads or Threads(engine, size=1, process="consumer")
        self._probing = asyncio.Lock()

    async def run(self, work: Callable[[Session], T], stop: asyncio.Event, *, in_thread: bool = False) -> T | None:
        """The result of the work, once it is committed; None if `stop` was set while the database was away.

        It runs in the event loop's thread, in a greenlet, or `in_thread`.

        Raises:
            Exception: the work's own error, if another try would not help.
            UnusableTables, UnusableSessions: the same, if outboxkit's tables or a pooler are to blame.
            asyncio.CancelledError: the work's own, or that of the consumer, which `is_cancelled` tells.
        """
        lost = collided = 0
        while True:
            try:
                return await self._once(work, in_thread=in_thread)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, BatchEntryFailed) else error
                await blame_database(self._engine, cause)
                collision = is_conflict(cause)
                collided, lost = collided + collision, lost + (not collision)
                away = None if collision else await self._away(cause)
                if not (collision or away) or collided > CONFLICTS or lost >= LOST_CONNECTIONS:
                    raise
            if collision:
                await pause(stop, jittered(0.005 * 2**collided))
                continue
            self._outage.begins(away)
            async with self._probing:  # one probe serves all tasks that wait
                if not stop.is_set():
                    await self._outage.ride_out(self._probe, stop)
            if stop.is_set():
                return None

    async def _once(self, work: Callable[[Session], T], *, in_thread: bool) -> T:
        if in_thread:
            return await self._threads.run(work)
        session = self._sessions()
        try:
            return await session.run_sync(_transact, work)
        except BaseException:
            async with session:  # which closes it whatever cancels this task
                raise

    async def _away(self, cause: BaseException | None) -> BaseException | None:
        """The error that shows that the database is away. After a handler's timeout a probe tells whether it is."""
        if isinstance(cause, TimeoutError):
            try:
                await self._probe(SOON_SECONDS)
            except Exception as error:  # noqa: BLE001 - judged like any other error
                cause = error
        return cause if what_is_away(cause) == "database" else None

    async def _probe(self, seconds: float = PROBE_SECONDS) -> None:
        """Make sure that the database answers and accepts rows.

        Raises:
            sqlalchemy.exc.DBAPIError: it does not, or not in time.
        """
        try:
            async with asyncio.timeout(seconds), self._sessions() as session:
                await session.execute(statements.inbox.probe_writable())
        except TimeoutError as error:
            raise OperationalError(None, None, SILENT, connection_invalidated=True) from error


def _transact(session: Session, work: Callable[[Session], T]) -> T:
    """Do the work, commit and give the connection back, in one greenlet."""
    with session.begin():
        result = work(session)
    session.close()
    return result


def is_conflict(error: BaseException | None) -> bool:
    """Whether the transaction only collided with another one, or with a partition that was created meanwhile."""
    if not isinstance(error, DBAPIError):
        return False
    sqlstate = sqlstate_of(error)
    if sqlstate == CHECK_VIOLATION:
        table = getattr(getattr(error.orig, "diag", None), "table_name", None) or ""
        return table.startswith(tables.inbox.name)
    return sqlstate in CONFLICT
