"""Pauses: an operator holds a relay or the consumers of a queue. Running processes see it within a second.

A pause is a row of `outboxkit_pause`. Each relay and each consumer looks twice a second whether there is one for it: a
primary key, and no statement of a batch.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, Row, StaticPool
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import audit, statements
from outboxkit.errors import ConfigurationError
from outboxkit.failures import first_line, printable
from outboxkit.message import is_storable_name
from outboxkit.outage import jittered

RELAY, CONSUMER = "relay", "consumer"
"""The processes that can be paused: the relays of a destination, and the consumers of a queue."""
LOOK_SECONDS = 0.5
"""The time between two looks, about."""
LEAVING_SECONDS = 1.0
"""The time that the last look gets to end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a relay or a consumer.

    Attributes:
        process: `relay` or `consumer`.
        name: the relay's destination, or the consumer's queue.
        since: when it began, by the database's clock.
        until: when it ends by itself; None: when an operator resumes it.
        why: the operator's reason.
        paused_by: the operator.
    """

    process: str
    name: str
    since: datetime
    until: datetime | None
    why: str
    paused_by: str

    def __str__(self) -> str:
        """The pause in a line, for people."""
        until = "" if self.until is None else f" until {_moment(self.until)}"
        return printable(f"{self.what} is paused since {_moment(self.since)}{until} by {self.paused_by}: {self.why}")

    @property
    def ended(self) -> str:
        """The pause in a line, once it is over."""
        return printable(f"it was paused since {_moment(self.since)} by {self.paused_by}: {self.why}")

    @property
    def what(self) -> str:
        """The name of what is paused, such as `queue billing`."""
        return what_of(self.process, self.name)


def what_of(process: str, name: str) -> str:
    """The name of a relay or consumer as people say it."""
    return f"the relay of destination {name}" if process == RELAY else f"queue {name}"


def pause_process(
    connection: Connection, process: str, name: str, *, why: str, by: str | None = None, lasts: timedelta | None = None
) -> Pause:
    """Pause the relays of a destination or the consumers of a queue, in the connection's transaction.

    If they are paused already, the pause gets this end, reason and operator, and still began when it did.

    Args:
        connection: of the database that they work on.
        process: `relay` or `consumer`.
        name: the relay's destination, or the consumer's queue.
        why: the reason, for people who find the pause.
        by: the operator's name; None: the user of the system.
        lasts: the time after which the pause ends by itself; None: it lasts until `resume_process`.

    Raises:
        ConfigurationError: there is no such process, the name cannot be one, or no reason is given.
    """
    if process not in (RELAY, CONSUMER):
        raise ConfigurationError(f"{process!r} cannot be paused: {RELAY!r} and {CONSUMER!r} are accepted")
    if not is_storable_name(name):
        raise ConfigurationError(f"{what_of(process, name[:20])!r} cannot exist: a name of 1 to 255 bytes is accepted")
    if not why.strip():
        raise ConfigurationError("why is empty: a reason is needed, for those who find the pause")
    operator, reason = audit.who(connection, by), audit.without_secrets(why.strip())
    row = {"process": process, "name": name, "lasts": lasts, "why": reason, "paused_by": operator}
    statement = statements.pauses.begin_pause(connection.dialect.name)
    begun = _pause(connection.execute(statement, row).one())
    asked = _where(process, name) | {"why": reason} | ({} if lasts is None else {"until": begun.until})
    audit.record_action(connection, "pause", asked, by=operator, count=1, result=audit.DONE)
    return begun


def resume_process(connection: Connection, process: str, name: str, *, by: str | None = None) -> Pause | None:
    """End a pause, in the connection's transaction; returns it, or None if there was none."""
    statement = statements.pauses.end_pause(connection.dialect.name)
    row = connection.execute(statement, {"process": process, "name": name}).one_or_none()
    ended = _pause(row) if row is not None and row.was_active else None
    count, result = (0, "was not paused") if ended is None else (1, audit.DONE)
    operator = audit.who(connection, by)
    audit.record_action(connection, "resume", _where(process, name), by=operator, count=count, result=result)
    return ended


def read_pauses(connection: Connection) -> tuple[Pause, ...]:
    """All pauses of now."""
    rows = connection.execute(statements.pauses.active_pauses(connection.dialect.name))
    return tuple(_pause(row) for row in rows)


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

    Attributes:
        current: the pause; None if there is none.
    """

    def __init__(self, engine: AsyncEngine, process: str, name: str) -> None:
        self.current: Pause | None = None
        self._engine = engine
        self._ours = {"process": process, "name": name}
        self._statement = statements.pauses.current_pause(engine.dialect.name)
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._ended.set()
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._log = structlog.get_logger("outboxkit").bind(process=process, **_where(process, name))

    async def look(self) -> None:
        """Look whether there is a pause.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        if isinstance(self._engine.pool, StaticPool):
            return
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            row = (await connection.execute(self._statement, self._ours)).one_or_none()
        self._saw(None if row is None else _pause(row))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again until the block is left."""
        self._is_over = False
        self._look_later()
        try:
            yield
        finally:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            if (last := self._looking) is not None and not last.done():
                await asyncio.wait((last,), timeout=LEAVING_SECONDS)
                last.cancel()
                await asyncio.gather(last, return_exceptions=True)

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
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
        if self.current is None:
            self._log.info(f"{pause.process} resumed", paused_since=pause.since.isoformat(timespec="seconds"))

    def _saw(self, pause: Pause | None) -> None:
        before, self.current = self.current, pause
        if pause is not None and before is None:
            self._ended.clear()
            self._begun.set()
        if pause is None and before is not None:
            self._begun.clear()
            self._ended.set()

    def _look_later(self, _: object = None) -> None:
        """Look after a while. Each look is a task of its own: a handler may cancel every task that there is."""
        if not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(jittered(LOOK_SECONDS), self._look_now)

    def _look_now(self) -> None:
        self._looking = asyncio.create_task(self._look_quietly())
        self._looking.add_done_callback(self._look_later)

    async def _look_quietly(self) -> None:
        """Look; an outage is reported by the process itself."""
        try:
            await self.look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes soon
            self._log.debug("no look for a pause", error=first_line(error))


def _pause(row: Row[Any]) -> Pause:
    return Pause(row.process, row.name, row.since, row.until, row.why, row.paused_by)


def _where(process: str, name: str) -> dict[str, str]:
    return {"destination" if process == RELAY else "queue": name}


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
