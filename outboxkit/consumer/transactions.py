"""Transactions of a consumer. One runs again if its failure says nothing about the message."""

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import statements, tables
from outboxkit.consumer.attempts import UNUSABLE, blame_database
from outboxkit.consumer.threads import Threads
from outboxkit.database import silence
from outboxkit.database.transaction import HandlerSession
from outboxkit.errors.failures import forget_locals
from outboxkit.errors.sqlstates import CHECK_VIOLATION, CONFLICT, TRANSIENT, is_disk_full, sqlstate_of
from outboxkit.inbox import BatchEntryFailed
from outboxkit.runtime.outage import Outage, jittered, sleep_unless_stopped, what_is_away

T = TypeVar("T")

LOST_CONNECTIONS = 5
"""The number of database connections that one message may lose while the database is up, before it is blamed. One
that it does not get is not lost."""
CONFLICTS = 5
"""The number of times a transaction is run again at once after a conflict, before that counts as a failure."""
AWAY_SECONDS, SOON_SECONDS = 15.0, 2.0
"""A database that does not answer for so long is away. The shorter limit follows a handler's own timeout."""
FULL_SECONDS = 60.0
"""The longest delay between two tries while the disk is full. Each try runs the handler, with its outside calls."""
NO_ANSWER = TimeoutError("the database does not answer")
_INBOX_INSERT = re.compile(rf'INSERT INTO (\S+\.)?"?{tables.inbox.name}"? ')


class DatabaseAway(OperationalError):
    """The database was away for longer than the consumer's patience."""


BLAMELESS = (*UNUSABLE, DatabaseAway)
"""Errors of `Transactions.run` for which no message is to blame, and with which the consumer ends."""


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
        self._outlasted: DatabaseAway | None = None

    async def run(self, work: Callable[[Session], T], stop: asyncio.Event, *, in_thread: bool = False) -> T | None:
        """The result of the work, once it is committed; None if `stop` was set while the database was away.

        It runs in the event loop's thread, in a greenlet, or `in_thread`.

        Raises:
            Exception: the work's own error, if another try would not help.
            UnusableTables, UnusableSessions: the same, if outboxkit's tables or a pooler are to blame.
            DatabaseAway: an outage outlasted the patience; the work is not to blame.
            asyncio.CancelledError: the work's own, or that of the consumer, which `is_cancelled` tells.
        """
        lost = collided = refused = full = 0
        has_begun = False

        def begin(session: Session) -> T:
            nonlocal has_begun
            has_begun = True
            return work(session)

        while True:
            has_begun = False
            try:
                result = await self._once(begin, in_thread=in_thread)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, BatchEntryFailed) else error
                await blame_database(self._engine, cause)
                collision = note_conflict(cause)
                full = full + 1 if is_disk_full(cause) else 0
                collided, lost = collided + collision, lost + (has_begun and not (collision or full))
                refused = 0 if has_begun else refused + 1
                away = None if collision else await self._away(cause)
                if not (collision or away) or collided > CONFLICTS or lost >= LOST_CONNECTIONS:
                    raise
                forget_locals(error)  # the next try has an event of its own, and there is room for one
            else:
                if full:
                    self._outage.is_over("database")
                return result
            if collision:
                await sleep_unless_stopped(stop, conflict_delay(collided))
                continue
            self._outage.begins(away)
            if full:  # the probe writes nothing, so the work itself is tried
                if self._outage.is_outlasted("database"):
                    raise _outlasted(away)
                await sleep_unless_stopped(stop, jittered(min(0.1 * 2 ** min(full, 10), FULL_SECONDS)))
            else:
                await self._ride_out(stop)
            if refused:  # the probe may have got one of the connections that the pool has, and there are no more
                await sleep_unless_stopped(stop, jittered(0.05 * 2 ** min(refused, 5)))
            if stop.is_set():
                return None

    async def _ride_out(self, stop: asyncio.Event) -> None:
        """Wait until the database answers, or `stop` is set. If one task gives up, so do those that wait behind it."""
        before = self._outlasted
        async with self._probing:
            if self._outlasted is not None and self._outlasted is not before:
                raise self._outlasted
            if stop.is_set():
                return
            try:
                await self._outage.ride_out(self._probe, stop)
            except SQLAlchemyError as error:
                self._outlasted = _outlasted(error)
                raise self._outlasted from error

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
        """The error that shows that the database is away. After a handler's timeout a probe tells whether it is.

        It counts as away, too, if its disk is full, or if the insert of an inbox row was cancelled or did not get its
        lock: the handler has not begun.
        """
        if isinstance(cause, TimeoutError):
            try:
                await self._probe(SOON_SECONDS)
            except Exception as error:  # noqa: BLE001 - judged like any other error
                cause = error
        passing = TRANSIENT if isinstance(cause, DBAPIError) and _INBOX_INSERT.match(cause.statement or "") else ()
        return cause if is_disk_full(cause) or what_is_away(cause, passing=passing) == "database" else None

    async def _probe(self, seconds: float = AWAY_SECONDS) -> None:
        """Make sure that the database answers and accepts rows."""
        try:
            async with asyncio.timeout(seconds), self._sessions() as session:
                await session.execute(statements.inbox.probe_writable())
        except TimeoutError as error:
            raise OperationalError(None, None, NO_ANSWER, connection_invalidated=True) from error


def _outlasted(error: BaseException | None) -> DatabaseAway:
    return DatabaseAway(None, None, getattr(error, "orig", error) or NO_ANSWER, connection_invalidated=True)


def _transact(session: Session, work: Callable[[Session], T]) -> T:
    """Do the work, commit and give the connection back, in one greenlet.

    This is the only place in which a consumer commits a handler's transaction in its event loop. In a thread it is
    `consumer/threads.py`.
    """
    with session.begin():
        session.connection()  # before the work begins
        result = work(session)
    session.close()
    return result


def conflict_delay(collided: int) -> float:
    """The delay before the next try of a transaction that has collided so often, in seconds."""
    return jittered(0.005 * 2**collided)


def is_conflict(error: BaseException | None) -> bool:
    """Whether the transaction only collided with another one, or with a partition or column that was made meanwhile."""
    if not isinstance(error, DBAPIError):
        return False
    sqlstate = sqlstate_of(error)
    if sqlstate == CHECK_VIOLATION:
        table = getattr(getattr(error.orig, "diag", None), "table_name", None) or ""
        return table.startswith(tables.inbox.name)
    return sqlstate in CONFLICT or _is_stale_plan(error)


def note_conflict(error: BaseException | None) -> bool:
    """`is_conflict`. If a prepared statement is to blame, older connections, which have it too, are replaced."""
    if _is_stale_plan(error):
        silence.note_end()
    return is_conflict(error)


def _is_stale_plan(error: BaseException | None) -> bool:
    """Whether a migration has changed the columns of a statement that the connection has prepared."""
    diagnosis = getattr(getattr(error, "orig", None), "diag", None)
    return getattr(diagnosis, "source_function", None) == "RevalidateCachedQuery"
