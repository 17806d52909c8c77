"""The pause of a process, as the process sees it: it polls twice a second, by a primary key, and in no batch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from sqlalchemy import StaticPool
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.errors.failures import first_line, printable
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.runtime.lifetime import end_tasks
from outboxkit.runtime.outage import Outage, jittered, what_is_away
from outboxkit.runtime.pauses import Pause, pause_of, where
from outboxkit.runtime.workers import Presence

PAUSE_POLL_SECONDS = 0.5
"""The time between two polls, about."""


class StopOrPause(asyncio.Event):
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

    It polls twice a second, each time on a connection from the engine's pool. While the database is away it keeps what
    it saw last. A database in memory has one connection and no operator, and is never polled.

    Args:
        outage: hears that the database is away, and back; None if the process asks the database often itself.
        presence: the process's row, which is written on the same connections; None: it has none.

    Attributes:
        current: the pause; None if there is none.
        is_resting: whether the process rests, with nothing in flight.
        rested_at: the last poll at which it was resting, in Unix time.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        process: str,
        name: str,
        outage: Outage | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.current: Pause | None = None
        self.rested_at, self.is_resting = 0.0, False
        self._engine = engine
        self._presence, self._is_watching = presence, False
        self._ours = {"process": process, "name": name}
        self._statement = statements.pauses.current_pause(engine.dialect.name)
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._ended.set()
        self._is_blind = False
        self._outage, self._missed = outage, 0
        self._log = structlog.get_logger("outboxkit").bind(process=process, **where(process, name))

    async def poll(self) -> None:
        """Query whether there is a pause."""
        if isinstance(self._engine.pool, StaticPool):
            return
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            row = (await connection.execute(self._statement, self._ours)).one_or_none()
            if self._presence is not None and self._is_watching:
                await self._presence.write(connection, rests=self.is_resting and row is not None)
        self._saw(None if row is None else pause_of(row))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Poll again and again until the block is left."""
        self._is_watching = True
        polling = asyncio.create_task(self._poll_repeatedly())
        try:
            yield
        finally:
            self._is_watching = False
            await end_tasks([polling])
            if self._presence is not None:
                await self._presence.leave()

    @asynccontextmanager
    async def stop_or_pause(self, stop: asyncio.Event) -> AsyncIterator[StopOrPause]:
        """An event that is set when the process is to pause, or when `stop` is set."""
        halt = StopOrPause(stop)

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
        self.is_resting = True
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_resting = False
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

    async def _poll_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(jittered(PAUSE_POLL_SECONDS))
            await self._poll_quietly()

    async def _poll_quietly(self) -> None:
        """Poll once. Report an outage from the second failed poll on, another error once until a poll succeeds."""
        try:
            await self.poll()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next poll comes soon
            is_outage = what_is_away(error, passing=TRANSIENT) is not None
            self._missed += is_outage
            if self._outage is not None and is_outage and self._missed > 1:
                self._outage.begins(error)
            if self._is_blind or is_outage:
                self._log.debug("the query for a pause failed", error=first_line(error))
                return
            self._is_blind = True
            self._log.error("pauses cannot be seen; outboxkit doctor names the cause", error=first_line(error))
        else:
            if self._outage is not None and self._missed > 1:
                self._outage.is_over("database")
            self._missed, self._is_blind = 0, False
