"""Operations in the background: replays and discards that no request has to wait for, and that survive a restart.

An operation is a row of `outboxkit_operation` beside its row of the audit trail. Whoever has the lease of the row works
at it, and writes how far it has come. If this worker dies, another one goes on there once the lease has ended. The
row is deleted with the end of the operation, and the audit trail keeps the outcome.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
import structlog
from sqlalchemy import Connection, Row
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import ids, statements
from outboxkit.errors.failures import first_line
from outboxkit.operators import audit, sql
from outboxkit.operators.deadletters import DeadLetters, Resolved, Selection, rules_of
from outboxkit.operators.replay import KeptPlace, Replayed, ReplaySelection, replaying
from outboxkit.runtime.lifetime import end_tasks
from outboxkit.runtime.outage import sleep_unless_stopped, what_is_away
from outboxkit.runtime.settings import Settings

LEASE = timedelta(seconds=15)
"""After this time without a sign of its worker another one goes on with an operation."""
RENEW_SECONDS = 2.0
LOOK_SECONDS = 5.0
"""The time between two looks for operations that nobody works at."""
AT_ONCE = 3
"""Operations that one process works at."""
MOST_SHOWN = 100
DEAD = {"dead replay": "replayed", "dead discard": "discarded"}
"""The actions on dead letters, and what becomes of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operation is to do.

    Attributes:
        kept: instead of `dead`, the kept messages that go to the queue `to_queue`.
        rate: messages a second, at most; None for no limit.
    """

    action: Literal["dead replay", "dead discard", "republish"]
    by: str
    dead: Selection | None = None
    upto: int = 0
    kept: ReplaySelection | None = None
    to_queue: str = ""
    rate: float | None = None
    accept_stale: bool = False
    why: str | None = None

    @property
    def filter(self) -> dict[str, Any]:
        """What the audit trail has of it."""
        more = {"to_queue": self.to_queue, "rate": self.rate, "accept_stale": self.accept_stale, "why": self.why}
        return {name: value for name, value in more.items() if value} | audit.filter_of(self.dead or self.kept)


@dataclass(frozen=True, slots=True)
class Operation:
    """How far an operation has come.

    Attributes:
        number: of its row in the audit trail.
        total: messages that were counted at its start; None: they are being counted.
        state: `running`, `stopping`, or `waiting` for a worker.
    """

    number: int
    action: str
    operator: str
    filter: str
    started_at: datetime
    count: int
    total: int | None
    state: str


class _Lost(Exception):
    """Another worker has the lease, or the operation was ended."""


def begin_operation(connection: Connection, plan: Plan, *, total: int | None, form: str) -> int:
    """Write an operation down, in the connection's transaction; returns its number. A `Background` works at it then.

    Without a total it counts the messages first.

    Raises:
        IntegrityError: the form has begun an operation already: that of `operation_of_form`.
    """
    by = audit.who(connection, plan.by)
    counted = {} if total is None else {"messages": total}
    number = audit.record_action(connection, plan.action, plan.filter | counted, by=by, result=None, form=form)
    row = {"action": number, "plan": msgspec.json.encode(plan).decode(), "total": total}
    connection.execute(sql.background.insert_operation(), row)
    return number


def operation_of_form(connection: Connection, form: str) -> int | None:
    """The number of the operation that a form has begun."""
    number: int | None = connection.execute(sql.actions.action_of_form(), {"form": form}).scalar_one_or_none()
    return number


def stop_operation(connection: Connection, number: int, *, by: str) -> bool:
    """Ask for the end of an operation, in the connection's transaction. False if it has ended."""
    stopped = connection.execute(sql.background.ask_for_stop(), {"of": number}).one_or_none() is not None
    if stopped:
        who, which = audit.who(connection, by), {"operation": number}
        audit.record_action(connection, "stop", which, by=who, count=1, result=audit.DONE)
    return stopped


def read_operations(connection: Connection) -> list[Operation]:
    """The operations that have not ended, the newest first."""
    now = connection.execute(statements.server.moment(connection.dialect.name)).scalar_one()
    rows = connection.execute(sql.background.newest_operations(), {"limit": MOST_SHOWN})
    return [_progress(row, now) for row in rows]


def read_operation(connection: Connection, number: int) -> Operation | audit.AuditedAction | None:
    """An operation's progress, or its outcome if it has ended."""
    now = connection.execute(statements.server.moment(connection.dialect.name)).scalar_one()
    row = connection.execute(sql.background.one_operation(), {"of": number}).one_or_none()
    return audit.read_action(connection, number) if row is None else _progress(row, now)


def _progress(row: Row[Any], now: datetime) -> Operation:
    is_leased = row.leased_until is not None and row.leased_until > now
    state = "stopping" if row.stops else "running" if is_leased else "waiting"
    return Operation(
        *(row.action, row.name, row.operator, row.filter, row.started_at, row.affected, row.total), state=state
    )


class _Leased(audit.RunningAction):
    """An action under a lease: each of its transactions proves that the lease is still this worker's."""

    def __init__(self, number: int, worker: str, place: KeptPlace | None) -> None:
        super().__init__(number)
        self.worker, self.place = worker, place
        self.stops = False

    async def count(self, connection: AsyncConnection, more: int) -> None:
        """Renew the lease, and add to the count; both in the connection's transaction."""
        place = None if self.place is None else msgspec.json.encode(self.place).decode()
        asked = {"of": self.number, "by_worker": self.worker, "lasts": LEASE, "at_place": place}
        renewed = await connection.execute(sql.background.renew(connection.dialect.name), asked)
        if (row := renewed.one_or_none()) is None:
            raise _Lost
        self.stops = self.stops or row.stops
        if more:
            await super().count(connection, more)


class Background:
    """Works at operations that nobody works at, as long as its event loop runs.

    Args:
        engine: for its own connections. It is used once there is an operation.
        reader: looks whether there is one.
    """

    def __init__(self, engine: AsyncEngine, reader: AsyncEngine, settings: Settings) -> None:
        self._engine, self._reader, self._settings = engine, reader, settings
        self._looking: asyncio.Task[None] | None = None
        self._working = set[asyncio.Task[None]]()
        self._wake = asyncio.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="console")

    def wake(self) -> None:
        """Look for an operation now; begin to look if that has not begun."""
        self._wake.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Stop working, and leave operations to those who go on with them."""
        if self._looking is not None:
            await end_tasks([self._looking])
        await end_tasks(self._working)  # also at what the look has begun meanwhile

    async def _look(self) -> None:
        while True:
            self._wake.clear()
            try:
                while len(self._working) < AT_ONCE and (row := await self._lease()) is not None:
                    task = asyncio.create_task(self._work(row))
                    self._working.add(task)
                    task.add_done_callback(self._done)
            except (SQLAlchemyError, OSError) as error:
                if what_is_away(error) is None:
                    self._log.warning("operations in the background are not looked for", error=first_line(error))
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self._wake.set()

    async def _lease(self) -> Row[Any] | None:
        async with self._reader.connect() as connection:
            if not (await connection.execute(sql.background.newest_operations(), {"limit": 1})).all():
                return None
        asked = {"by_worker": ids.new(), "lasts": LEASE}
        async with self._engine.begin() as connection:
            taken = await connection.execute(sql.background.lease(connection.dialect.name), asked)
            rows: Sequence[Row[Any]] = taken.all()
        return next(iter(rows), None)

    async def _work(self, row: Row[Any]) -> None:
        """Work at an operation until its end, a stop, or the loss of the lease or of a server."""
        place = None if row.place is None else msgspec.json.decode(row.place, type=KeptPlace)
        running, stop = _Leased(row.action, row.worker, place), asyncio.Event()
        try:
            async with self._renewed(running, stop):
                await self._do(msgspec.json.decode(row.plan, type=Plan), row.total, running, stop)
        except _Lost:
            return
        except asyncio.CancelledError:
            await self._release(running)
            raise
        except Exception as error:  # noqa: BLE001 - the audit trail has it, whatever it is
            if what_is_away(error) is not None:  # it goes on when the lease has ended
                self._log.warning("an operation waits for a server", operation=row.action, error=first_line(error))
                return
            self._log.exception("an operation failed", operation=row.action)
            running.result = f"failed: {first_line(error)}"
        await self._end(running)

    async def _do(self, plan: Plan, total: int | None, running: _Leased, stop: asyncio.Event) -> None:
        """Do what the plan says, from its place on."""
        if plan.dead is not None:
            rules = rules_of(self._settings, accept_stale=plan.accept_stale)
            letters = DeadLetters(self._engine, rules=rules, rate=plan.rate, by=plan.by)
            as_: Any = DEAD[plan.action]
            if total is None:
                left = await letters.count(plan.dead, upto=plan.upto)
                await self._set_total(running, left + await self._counted(running))
            await letters.resolve(as_, plan.dead, stop, Resolved(), upto=plan.upto, running=running)
        elif plan.kept is not None:
            async with replaying(self._engine, self._settings, plan.kept, plan.to_queue, rate=plan.rate) as replayer:
                if total is None:
                    total = (await replayer.find()).count
                    await self._set_total(running, total)
                await replayer.run(stop, Replayed(await self._counted(running), total), running=running)

    async def _counted(self, running: _Leased) -> int:
        async with self._engine.connect() as connection:
            row = (await connection.execute(sql.background.one_operation(), {"of": running.number})).one()
            return int(row.affected)

    async def _set_total(self, running: _Leased, messages: int) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(sql.background.set_total(), {"of": running.number, "messages": messages})

    @asynccontextmanager
    async def _renewed(self, running: _Leased, stop: asyncio.Event) -> AsyncIterator[None]:
        """Renew the lease during the block, write the place, and see a stop; the work ends if the lease is lost.

        The last renewal is not cancelled: nobody would know whether it has counted.
        """
        ended = asyncio.Event()
        renewing = asyncio.create_task(self._renew(running, stop, ended))
        try:
            yield
        finally:
            ended.set()
            await renewing

    async def _renew(self, running: _Leased, stop: asyncio.Event, ended: asyncio.Event) -> None:
        while not ended.is_set():
            try:
                await running.write(self._engine)
            except _Lost:
                stop.set()
                return
            if running.stops:
                stop.set()
            await sleep_unless_stopped(ended, RENEW_SECONDS)

    async def _release(self, running: _Leased) -> None:
        with suppress(SQLAlchemyError, OSError, _Lost):
            async with self._engine.begin() as connection:
                await running.count(connection, running.uncounted)
                asked = {"of": running.number, "by_worker": running.worker}
                await connection.execute(sql.background.give_back(), asked)

    async def _end(self, running: _Leased) -> None:
        """Write the outcome and delete the operation, if the lease is still this worker's."""
        with suppress(SQLAlchemyError, OSError):  # the lease ends, and another one finds nothing left to do
            async with self._engine.begin() as connection:
                asked = {"of": running.number, "by_worker": running.worker}
                if (await connection.execute(sql.background.delete_operation(), asked)).one_or_none():
                    await audit.finish_action(connection, running)
