"""One transaction of a consumer: tried again if its failure says nothing about the message."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import schema, statements, tables
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.failures import first_line
from outboxkit.inbox import BatchEntryFailed, guard
from outboxkit.outage import Outage, jittered, pause, what_is_away
from outboxkit.sqlstates import CHECK_VIOLATION, CONFLICT, sqlstate_of
from outboxkit.threads import Threads

T = TypeVar("T")

LOST_CONNECTIONS = 5
"""The number of database connections that one message may lose while the database is up, before it is blamed."""
CONFLICTS = 5
"""The number of times a transaction is run again at once after a conflict, before that counts as a failure."""
PROBE_SECONDS, SOON_SECONDS = 15.0, 2.0
"""A database that does not answer for so long is away. The shorter limit follows a handler's own timeout."""
SILENT = TimeoutError("the database does not answer")


class Escaped(Exception):
    """The work raised something that is not an Exception, its `__cause__`: a SystemExit, or its own CancelledError."""


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


class Cancellations:
    """The tasks that the consumer itself has cancelled. Any other CancelledError is a failure of what raised it."""

    def __init__(self) -> None:
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task because the consumer ends."""
        self._tasks.add(task)
        task.cancel()

    def requested(self) -> bool:
        """Whether the consumer has cancelled the current task."""
        return asyncio.current_task() in self._tasks

    def undo_foreign(self) -> None:
        """Undo a cancellation of the current task by anything but the consumer, such as a handler or its libraries."""
        task = asyncio.current_task()
        while task is not None and task.cancelling() and not self.requested():
            task.uncancel()


class Transactions:
    """Runs work in sessions of its own, and waits while the database is away."""

    def __init__(
        self,
        engine: AsyncEngine,
        outage: Outage,
        cancellations: Cancellations | None = None,
        threads: Threads | None = None,
    ) -> None:
        # A task that a handler left behind must not use its session any more: it would keep a connection for ever.
        self._engine = engine
        info = {guard.AT_COMMIT: True}
        self._sessions = async_sessionmaker(engine, expire_on_commit=False, close_resets_only=False, info=info)
        self._outage = outage
        self._cancellations = cancellations or Cancellations()
        self._threads = threads or Threads(engine, size=1, process="consumer")
        self._probing = asyncio.Lock()

    async def run(self, work: Callable[[Session], T], stop: asyncio.Event, *, in_thread: bool = False) -> T | None:
        """The result of the work, once it is committed; None if `stop` was set while the database was away.

        It runs in the event loop's thread, in a greenlet, or `in_thread`.

        Raises:
            Exception: the work's own error, if another try would not help.
            UnusableTables, UnusableSessions: the same, if outboxkit's tables or a pooler are to blame.
            Escaped: the same, for an error that is not an Exception.
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
        def contained(session: Session) -> T:
            try:
                return work(session)
            except Exception:
                raise
            except BaseException as error:  # greenlets, tasks and threads give some of these a meaning of their own
                if not in_thread and self._cancellations.requested():
                    raise asyncio.CancelledError from error
                raise Escaped from error

        try:
            if in_thread:
                return await self._threads.run(contained)
            async with self._sessions() as session, session.begin():
                return await session.run_sync(contained)
        except Exception as error:
            _check_class(error)
            raise
        except BaseException as error:  # a hook of the session may raise it at the commit
            if isinstance(error, asyncio.CancelledError) and self._cancellations.requested():
                raise
            raise Escaped from error
        finally:
            self._cancellations.undo_foreign()

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


def _check_class(error: Exception) -> None:
    """Raise a plain error in place of one that does not tell its class: every `isinstance` with it would fail.

    Raises:
        RuntimeError: the error's text; the work or one of its libraries raised it.
    """
    original = error.__cause__ if type(error) in (BatchEntryFailed, Escaped) else error
    try:
        _ = original.__class__
    except BaseException:  # noqa: BLE001 - nothing is awaited here, so it is the error's own
        raise RuntimeError(first_line(original)) from None


def is_conflict(error: BaseException | None) -> bool:
    """Whether the transaction only collided with another one, or with a partition that was created meanwhile."""
    if not isinstance(error, DBAPIError):
        return False
    sqlstate = sqlstate_of(error)
    if sqlstate == CHECK_VIOLATION:
        table = getattr(getattr(error.orig, "diag", None), "table_name", None) or ""
        return table.startswith(tables.inbox.name)
    return sqlstate in CONFLICT
