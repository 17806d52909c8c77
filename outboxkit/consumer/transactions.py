"""One transaction of a consumer: tried again where its failure says nothing about the message."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import statements, tables
from outboxkit.inbox import Culprit
from outboxkit.outage import Outage, jittered, pause, what_is_away

T = TypeVar("T")

LOST_CONNECTIONS = 5
"""How often one message may lose a database connection while the database is there, before it is taken as the cause."""
CONFLICTS = 5
"""How often a transaction that collided with another one is tried again at once, before that counts as a failure."""
PROBE_SECONDS = 2
"""A database that does not answer for so long is away."""
CONFLICT_SQLSTATES = ("40001", "40P01")
"""Serialization failure, and deadlock detected (PostgreSQL, appendix A)."""
CHECK_VIOLATION = "23514"


class Transactions:
    """Runs work in sessions of its own, and waits while the database is away."""

    def __init__(self, engine: AsyncEngine, outage: Outage) -> None:
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._outage = outage
        self._probing = asyncio.Lock()

    async def run(self, work: Callable[[Session], T], stop: asyncio.Event) -> T | None:
        """What the work returns, once it is committed; None where `stop` came while the database was away.

        Raises:
            Exception: whatever the work raises, where another try would not help.
        """
        lost = collided = 0
        while True:
            try:
                async with self._sessions() as session, session.begin():
                    return await session.run_sync(work)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, Culprit) else error
                collision = is_conflict(cause)
                collided, lost = collided + collision, lost + (not collision)
                passing = collision or await self._is_away(cause)
                if not passing or collided > CONFLICTS or lost >= LOST_CONNECTIONS:
                    raise
            if collision:
                await pause(stop, jittered(0.005 * 2**collided))
                continue
            self._outage.begins(cause)
            async with self._probing:  # one asks whether it is back, for all that wait
                if not stop.is_set():
                    await self._outage.ride_out(self._probe, stop)
            if stop.is_set():
                return None

    async def _is_away(self, cause: BaseException | None) -> bool:
        """Whether it was the database; a handler that ran out of time may have waited for one that fell silent."""
        if isinstance(cause, TimeoutError):
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._probe()
            except TimeoutError:
                return True
            except Exception as error:  # noqa: BLE001 - read as any other
                cause = error
        return what_is_away(cause) == "database"

    async def _probe(self) -> None:
        async with self._sessions() as session:
            await session.execute(statements.inbox.record_nothing())


def is_conflict(error: BaseException | None) -> bool:
    """Whether the transaction has only collided with another one, or with a partition that was made meanwhile."""
    if not isinstance(error, DBAPIError):
        return False
    sqlstate = getattr(error.orig, "sqlstate", None)
    if sqlstate == CHECK_VIOLATION:
        table = getattr(getattr(error.orig, "diag", None), "table_name", None) or ""
        return table.startswith(tables.inbox.name)
    return sqlstate in CONFLICT_SQLSTATES
