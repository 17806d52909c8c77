"""The pause of a process, as the process sees it: it looks twice a second, by a primary key, and in no batch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from sqlalchemy import Row, StaticPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import statements
from outboxkit.errors.failures import first_line, printable
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.runtime.outage import Outage, jittered, what_is_away
from outboxkit.runtime.pauses import Pause, pause_of, where
from outboxkit.runtime.pauses.holding import Acknowledgement
from outboxkit.statements.dialects import is_server

LOOK_SECONDS = 0.5
"""The time between two looks, about."""


class Halt(asyncio.Event):
    """An event that is set when a process is to stop, or to pause.

    Attributes:
        is_pause: whether it was set by a pause.
    """

    is_pause = False

    def __init__(self, stop: asyncio.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        """Whether it was set, or the process is to stop."""
        return super().is_set() or self._stop.is_set()


class PauseWatch:
    """The pause of one process, as far as it has seen the database.

    It looks twice a second, on a connection that it takes from the engine's pool for that. While the database is away
    it keeps what it saw last. A database in memory has one connection and no operator, and is never looked at.

    Args:
        engine: the process's own.
        process: `relay` or `consumer`.
        name: the relay's destination, or the consumer's queue.
        outage: hears that the database is away, and back; None if the process asks the database often itself.

    Attributes:
        current: the pause; None if there is none.
        is_resting: whether the process rests, with nothing in flight.
        rested_at: the last look at which it was resting, in Unix time.
    """

    def __init__(self, engine: AsyncEngine, process: str, name: str, outage: Outage | None = None) -> None:
        self.current: Pause | None = None
        self.rested_at, self.is_resting = 0.0, False
        self._engine = engine
        self._acknowledgement = Acknowledgement(process, name, engine.sync_engine)
        self._kept: AsyncConnection | None = None
        self._ours = {"process": process, "name": name}
        self._statement = statements.operations.current_pause(engine.dialect.name)
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._ended.set()
        self._is_blind = False
        self._outage, self._missed = outage, 0
        self._log = structlog.get_logger("outboxkit").bind(process=process, **where(process, name))

    async def look(self) -> None:
        """Look whether there is a pause.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        if isinstance(self._engine.pool, StaticPool):
            return
        if self.is_resting and is_server(self._engine.dialect.name):
            row = await self._look_and_acknowledge()
        else:
            await self._let_go()
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                row = (await connection.execute(self._statement, self._ours)).one_or_none()
        self._saw(None if row is None else pause_of(row))

    async def _look_and_acknowledge(self) -> Row[Any] | None:
        """Look on a connection that is kept while the process rests: its locks say so."""
        try:
            if self._kept is None:
                self._kept = await self._engine.connect()
                await self._kept.execution_options(isolation_level="AUTOCOMMIT")
            await self._acknowledgement.lock(self._kept)
            row: Row[Any] | None = (await self._kept.execute(self._statement, self._ours)).one_or_none()
        except (Exception, asyncio.CancelledError):  # nobody knows what the connection is in the midst of
            await self._let_go()
            raise
        return row

    async def _let_go(self) -> None:
        """Close the connection that was kept, and with it the locks."""
        connection, self._kept = self._kept, None
        self._acknowledgement.is_gone()
        if connection is not None:
            await connection.invalidate()
            await connection.close()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again until the block is left."""
        self._acknowledgement.is_busy = True
        looking = asyncio.create_task(self._look_repeatedly())
        try:
            yield
        finally:
            self._acknowledgement.is_busy = False
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self._let_go()

    @asynccontextmanager
    async def halting(self, stop: asyncio.Event) -> AsyncIterator[Halt]:
        """An event that is set when the process is to pause, or when `stop` is set."""
        halt = Halt(stop)

        async def forward(event: asyncio.Event) -> None:
            await event.wait()
            halt.is_pause = event is not stop
            halt.set()

        tasks = [asyncio.create_task(forward(event)) for event in (stop, self._begun)]
        try:
            yield halt
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_for_end(self, stop: asyncio.Event) -> None:
        """Return once there is no pause any more, or `stop` is set. To be called when nothing is in flight: it logs."""
        pause = self.current
        if pause is None:
            return
        until = {} if pause.until is None else {"until": pause.until.isoformat(timespec="seconds")}
        self._log.info(f"{pause.process} paused", by=pause.paused_by, why=printable(pause.why), **until)
        both = [asyncio.ensure_future(event.wait()) for event in (stop, self._ended)]
        self.is_resting, self._acknowledgement.is_busy = True, False
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_resting, self._acknowledgement.is_busy = False, True
            for one in both:
                one.cancel()
        if self.current is None:
            self._log.info(f"{pause.process} resumed", paused_since=pause.since.isoformat(timespec="seconds"))

    def _saw(self, pause: Pause | None) -> None:
        before, self.current = self.current, pause
        if self.is_resting:
            self.rested_at = time.time()
        if pause is not None and before is None:
            self._ended.clear()
            self._begun.set()
        if pause is None and before is not None:
            self._begun.clear()
            self._ended.set()

    async def _look_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(jittered(LOOK_SECONDS))
            await self._look_quietly()

    async def _look_quietly(self) -> None:
        """Look. The second look in a row that an outage prevents is told; another error once, until a look succeeds."""
        try:
            await self.look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes soon
            is_outage = what_is_away(error, passing=TRANSIENT) is not None
            self._missed += is_outage
            if self._outage is not None and is_outage and self._missed > 1:
                self._outage.begins(error)
            if self._is_blind or is_outage:
                self._log.debug("no look for a pause", error=first_line(error))
                return
            self._is_blind = True
            self._log.error("pauses cannot be seen; outboxkit doctor names the cause", error=first_line(error))
        else:
            if self._outage is not None and self._missed > 1:
                self._outage.is_over("database")
            self._missed, self._is_blind = 0, False
