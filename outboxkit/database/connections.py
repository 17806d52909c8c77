"""Connections to PostgreSQL for outboxkit's own processes: they notice a server that falls silent, see `silence`."""

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from types import MappingProxyType
from typing import Any, Self, TypeVar

import psycopg
import structlog
from psycopg import AsyncConnection, OperationalError, generators
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError

from outboxkit.database import driver_rows, silence
from outboxkit.database.session_settings import GuardedEnd
from outboxkit.database.silence import Doubt, Facts
from outboxkit.errors.figures import printable_name

T = TypeVar("T")
Waiting = Generator[Any, Any, T]
"""A generator of psycopg's: it yields what it waits for, and gets what is ready; nothing is at least each 0.1 s."""

PROBE_SECONDS = 5
"""The time that the second connection has to connect, and then to get its answer."""
JUST_SECONDS = 0.5
"""The age up to which a connection of a pool is known to answer."""
_USED = "outboxkit.used"
"""A key in the `info` of a pool's entry: its connection was given out before."""
SLOW_SECONDS = 5.0
"""A process that connects for so long says so."""
IDLE_SECONDS = 5.0
"""A server process that has been idle for less may just have sent its answer."""
_WHO = "SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity WHERE pid = pg_backend_pid()"
"""The server process of a connection. The protocol has a pid as well, which behind a pooler is the pooler's."""
_WORKS = """
SELECT state LIKE 'idle%%' AND state_change < clock_timestamp() - make_interval(secs => %s), wait_event = 'ClientRead',
    CASE WHEN wait_event_type = 'Lock' THEN (
        SELECT string_agg(format('session %%s (%%s)', pid, application_name), ', ') FROM pg_stat_activity
        WHERE pid = ANY(pg_blocking_pids(asked.pid))) END
FROM pg_stat_activity AS asked WHERE pid = %s AND extract(epoch FROM backend_start)::float8 = %s
"""
_OPTIONS = ("autocommit", "row_factory", "cursor_factory")
"""The driver's options that a handler may change on a connection, and which end with its transaction."""
_CLOSING = set[asyncio.Task[None]]()
"""Tasks that close a connection. Without this reference the event loop might drop them."""


def name_apart(driver: Any) -> None:
    """Have a psycopg connection prepare statements under names that no other connection uses.

    Psycopg's own names count from 0 in each connection. Behind a pooler in transaction mode one client would run the
    statement of another. With these names the server refuses: there is no such statement in this session.
    """
    manager: Any = getattr(driver, "_prepared", None)  # the driver has no setting for it
    if hasattr(manager, "_prepared_idx"):
        manager._prepared_idx = secrets.randbits(62)  # noqa: SLF001
    else:  # a later psycopg counts in another way
        driver.prepare_threshold = None


class _OwnConnection:
    """The parts that both kinds of connections have in common."""

    waits = 0
    lock: Any
    pgconn: Any
    patience: silence.Patience | None = None
    ending: GuardedEnd | None = None
    reset = ""
    backend: tuple[int, float] | None = None
    opened_at = float("inf")
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def is_in_block(self) -> bool:
        """Whether a block of the driver, a COPY's or a pipeline, holds the connection, and no call waits in it.

        A call that needs the connection would wait for the end of that block, which may never come.
        """
        is_pipeline: bool = self.pgconn.pipeline_status != PipelineStatus.OFF
        return is_pipeline or (not self.waits and self.lock.locked())

    def first_row(self, connection: SqlConnection, statement: Any, parameters: Mapping[str, object]) -> Any:
        """The first row of a statement in the transaction of SQLAlchemy's `connection`; None if there is no row."""
        return driver_rows.first(connection, statement, parameters)


class Connection(_OwnConnection, AsyncConnection[Any]):
    """A connection for the event loop, which is not freed while a task of a handler still waits in it.

    Psycopg's own would be freed, and the task's next call would crash the process.
    """

    @classmethod
    async def connect(cls, *arguments: Any, autocommit: bool = False, **options: Any) -> Self:
        """Connect, and learn which server process serves it."""
        with _said_if_slow(options):
            connection = await super().connect(*arguments, autocommit=True, **options)
            try:
                connection.backend = await (await connection.execute(_WHO, prepare=False)).fetchone()
                await connection.set_autocommit(autocommit)
            except (Exception, asyncio.CancelledError):
                await connection.close()
                raise
        connection.opened_at = monotonic()
        connection.options = {name: getattr(connection, name) for name in _OPTIONS}
        return connection

    def wait(self, gen: Waiting[T], *arguments: Any, **options: Any) -> Coroutine[Any, Any, T]:
        """Wait for the server, unless it has fallen silent."""
        return super().wait(_attended(self, gen), *arguments, **options)

    async def commit(self) -> None:
        """Commit, and reset the session after a handler."""
        if self.ending is None:
            await super().commit()
            return
        async with self.lock:
            await self.wait(_commit(self, self.ending))

    async def rollback(self) -> None:
        """Roll back, and reset the session after a handler."""
        if self.is_in_block:
            _hang_up(self)
            return
        if self.ending is None and self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            await super().rollback()
            return
        async with self.lock:
            await self.wait(_roll_back(self))

    async def close(self) -> None:
        """Close it. If a task still waits for an answer, hang up: that task gets an error, and then it is closed."""
        if self.closed or not self.lock.locked():
            await super().close()
            return
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        closing = asyncio.create_task(self._close_when_free())
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)
        await asyncio.shield(closing)  # it goes on if this task is cancelled

    async def _close_when_free(self) -> None:
        async with self.lock:
            await super().close()


class ThreadConnection(_OwnConnection, psycopg.Connection[Any]):
    """A connection for threads."""

    @classmethod
    def connect(cls, *arguments: Any, autocommit: bool = False, **options: Any) -> Self:
        """Connect, and learn which server process serves it."""
        with _said_if_slow(options):
            connection = super().connect(*arguments, autocommit=True, **options)
            try:
                connection.backend = connection.execute(_WHO, prepare=False).fetchone()
                connection.set_autocommit(autocommit)
            except Exception:
                connection.close()
                raise
        connection.opened_at = monotonic()
        connection.options = {name: getattr(connection, name) for name in _OPTIONS}
        return connection

    def wait(self, gen: Waiting[T], *arguments: Any, **options: Any) -> T:
        """Wait for the server, unless it has fallen silent."""
        return super().wait(_attended(self, gen), *arguments, **options)

    def commit(self) -> None:
        """Commit, and reset the session after a handler."""
        if self.ending is None:
            super().commit()
            return
        with self.lock:
            self.wait(_commit(self, self.ending))

    def rollback(self) -> None:
        """Roll back, and reset the session after a handler."""
        if self.is_in_block:
            _hang_up(self)
            return
        if self.ending is None and self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            super().rollback()
            return
        with self.lock:
            self.wait(_roll_back(self))


class _SecondConnection(psycopg.Connection[Any]):
    """A connection that asks about another one. It waits for no answer for long."""

    def wait(self, gen: Waiting[T], *arguments: Any, **options: Any) -> T:
        return super().wait(_limited(self, gen), *arguments, **options)


def part_with_silent(engine: Engine) -> None:
    """Have the pool replace closed connections, and those that it opened before another one was found silent.

    A new one is not replaced, however long it took: after two the pool gives up, with an error that is not an outage.
    """

    @event.listens_for(engine, "checkout")
    def _refuse(connection: Any, record: Any, _: Any) -> None:
        driver = getattr(connection, "driver_connection", connection)
        if _USED not in record.info:  # the pool forgets it with the connection
            record.info[_USED] = True
            if driver.closed:
                raise OperationalError("the connection has ended before its first use")
            return
        if driver.closed:
            raise DisconnectionError("it was closed, since its transaction could not be rolled back")
        # One that was opened a moment ago has just answered.
        if driver.opened_at <= min(silence.last_end(), monotonic() - JUST_SECONDS):
            raise InvalidatePoolError("a connection of its time was silent")


def _hang_up(connection: Connection | ThreadConnection) -> None:
    connection.ending = None
    connection.pgconn.finish()


def _commit(connection: Connection | ThreadConnection, ending: GuardedEnd) -> Waiting[None]:
    """COMMIT with its `GuardedEnd`. After an error it is rolled back: SQLAlchemy counts the transaction as ended."""
    try:
        yield from _end(connection, ending.before, "COMMIT")
    except psycopg.Error as error:
        if not connection.closed:
            yield from _roll_back(connection)
        refusal = ending.refusal(error)
        if refusal is error:
            raise
        raise refusal from error
    connection.ending = None


def _roll_back(connection: Connection | ThreadConnection) -> Waiting[None]:
    """ROLLBACK; or the connection's end in the midst of a command, such as a COPY whose data is not read."""
    is_handlers, connection.ending = connection.ending is not None, None
    if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
        connection.pgconn.finish()
    elif is_handlers:
        yield from _end(connection, "ROLLBACK")
        manager: Any = getattr(connection, "_prepared", None)
        if hasattr(manager, "maintain_gen") and not connection.closed:  # as after the driver's own ROLLBACK
            manager.clear()
            yield from manager.maintain_gen(connection)
    elif connection.pgconn.transaction_status != TransactionStatus.IDLE:
        yield from _send(connection, "ROLLBACK")


def _end(connection: Connection | ThreadConnection, *texts: str) -> Waiting[None]:
    """Send the end of a transaction, and reset its session and the driver's options."""
    yield from _send(connection, *texts, connection.reset)
    for name, value in connection.options.items():
        if getattr(connection, name) is not value:
            if name == "autocommit":  # no driver lets it be set here: the pool makes another connection
                connection.pgconn.finish()
            else:
                setattr(connection, name, value)


def _send(connection: Connection | ThreadConnection, *texts: str) -> Waiting[None]:
    """Send several statements at once."""
    connection.pgconn.send_query("; ".join(filter(None, texts)).encode())
    for result in (yield from generators.execute(connection.pgconn)):
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)


def _attended(connection: Connection | ThreadConnection, waiting: Waiting[T]) -> Waiting[T]:
    """The same wait, which ends with an error if the server has fallen silent."""
    heard, doubt = monotonic(), None
    connection.waits += 1
    try:
        wish = next(waiting)
        while True:
            ready = yield wish
            if ready:
                heard = monotonic()
            elif doubt is None:
                patience = connection.patience or silence.ours()
                if monotonic() - heard >= patience.asks:
                    place = _place(connection.info.host, connection.info.port)
                    doubt = Doubt(heard, place, _question(connection, patience.asks))
            elif (reason := doubt.judge((connection.patience or silence.ours()).limit)) is not None:
                if reason:
                    connection.pgconn.finish()
                    silence.note_end()
                    raise OperationalError(reason)  # noqa: TRY301 - the connection has ended
                heard = monotonic()
            if doubt is not None and heard > doubt.since:
                doubt.end()
                doubt = None
            wish = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
    except OperationalError as error:
        _refuse_if_busy(connection, error)
        raise
    finally:
        connection.waits -= 1
        if doubt is not None:
            doubt.end()


def _refuse_if_busy(connection: Connection | ThreadConnection, error: OperationalError) -> None:
    """Raise another error if the server is there, and the statement was not sent, since a COPY goes on."""
    is_busy = connection.pgconn.transaction_status == TransactionStatus.ACTIVE
    if is_busy and error.sqlstate is None and connection.pgconn.status == ConnStatus.OK:
        raise psycopg.ProgrammingError(f"an earlier command, such as a COPY, has not ended: {error}") from error


def _limited(connection: _SecondConnection, waiting: Waiting[T]) -> Waiting[T]:
    deadline = monotonic() + PROBE_SECONDS
    try:
        wish = next(waiting)
        while True:
            ready = yield wish
            if not ready and monotonic() > deadline:
                connection.pgconn.finish()
                raise OperationalError(f"it got no answer within {PROBE_SECONDS} s")
            wish = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


@contextmanager
def _said_if_slow(options: Mapping[str, Any]) -> Iterator[None]:
    """Have it said that a connection still waits: a pooler lets it in, and answers once one of its sessions is free."""
    text = f"connecting to the database {_place(options.get('host'), options.get('port'))} takes long. {silence.CAUSES}"
    say = silence.tell if silence.is_command() else structlog.get_logger("outboxkit").warning
    timer = threading.Timer(SLOW_SECONDS, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _place(host: Any, port: Any) -> str:
    return f"at {printable_name(host and str(host))}:{port or 5432}"


def _parameters(connection: Connection | ThreadConnection) -> dict[str, Any]:
    """The parameters to connect in the same way, but not to the same address of a host that has several."""
    parameters: dict[str, Any] = connection.info.get_parameters()
    parameters.pop("hostaddr", None)
    if connection.info.password:
        parameters["password"] = connection.info.password
    return parameters | {"connect_timeout": PROBE_SECONDS, "application_name": "outboxkit asks"}


def _question(connection: Connection | ThreadConnection, seconds: float) -> Callable[[], Facts | None]:
    """Asks whether the server process has nothing to do, or is gone; and for the sessions whose lock it waits for.

    A process that got a part of what was sent counts as active, and reads from its client: if it does so twice, the
    rest is lost.
    Behind a pooler in transaction mode the process of a connection changes. Workers refuse one. For a command
    any answer means that the server works.
    """
    parameters, backend = _parameters(connection), connection.backend
    idle_seconds = min(IDLE_SECONDS, seconds / 2)
    is_direct = backend is not None and backend[0] == connection.pgconn.backend_pid
    may_have_another = silence.is_command() and not is_direct
    was_reading = False

    def ask() -> Facts | None:
        nonlocal was_reading
        with _SecondConnection.connect(autocommit=True, prepare_threshold=None, **parameters) as second:
            if backend is None or may_have_another:
                second.execute("SELECT 1")
                return None if backend is None else (False, None)
            row = second.execute(_WORKS, (idle_seconds, *backend)).fetchone()
            is_idle, is_reading, holders = row or (True, True, None)
            if is_reading and not is_idle and not was_reading:
                was_reading = True
                return None
            is_idle = is_idle or is_reading
            if row and is_idle and is_direct:
                with suppress(psycopg.Error):  # what it has locked would stay locked as long as the network is silent
                    second.execute("SELECT pg_terminate_backend(%s)", backend[:1])
        return bool(is_idle), holders and printable_name(holders)

    return ask
