"""Connections to PostgreSQL for outboxkit's own processes: they notice a server that falls silent, see `silence`."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from time import monotonic
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, OperationalError
from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

from outboxkit.silence import OURS, Doubt, Facts, last_end, note_end
from outboxkit.wording import printable_name

T = TypeVar("T")
Waiting = Generator[Any, Any, T]
"""A generator of psycopg's: it yields what it waits for, and gets what is ready; nothing is at least each 0.1 s."""

ANSWER_SECONDS = 5
"""The time that the second connection has to connect, and then to get its answer."""
IDLE_SECONDS = 5.0
"""A server process that has been idle for less may just have sent its answer."""
_WHO = "SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity WHERE pid = pg_backend_pid()"
"""The server process of a connection. The protocol has a pid as well, which behind a pooler is the pooler's."""
_WORKS = """
SELECT state LIKE 'idle%%' AND state_change < clock_timestamp() - make_interval(secs => %s),
    CASE WHEN wait_event_type = 'Lock' THEN (
        SELECT string_agg(format('session %%s (%%s)', pid, application_name), ', ') FROM pg_stat_activity
        WHERE pid = ANY(pg_blocking_pids(asked.pid))) END
FROM pg_stat_activity AS asked WHERE pid = %s AND extract(epoch FROM backend_start)::float8 = %s
"""
_CLOSING = set[asyncio.Task[None]]()
"""Tasks that close a connection. Without this reference the event loop might drop them."""


def name_apart(driver: Any) -> None:
    """Have a psycopg connection prepare statements under names that no other connection uses.

    Psycopg's own names count from 0 in each connection. Behind a pooler in transaction mode one client would run the
    statement of another. With these names the server refuses: there is no such statement in this session.
    """
    manager = driver._prepared  # noqa: SLF001 - the driver has no setting for it
    if hasattr(manager, "_prepared_idx"):
        manager._prepared_idx = secrets.randbits(62)  # noqa: SLF001
    else:  # a later psycopg counts in another way
        driver.prepare_threshold = None


class Connection(AsyncConnection[Any]):
    """A connection for the event loop, which is not freed while a task of a handler still waits in it.

    Psycopg's own would be freed, and the task's next call would crash the process.
    """

    patience = OURS
    backend: tuple[int, float] | None = None
    opened_at = float("inf")

    @classmethod
    async def connect(cls, *arguments: Any, autocommit: bool = False, **options: Any) -> Self:
        """Connect, and learn which server process serves it."""
        connection = await super().connect(*arguments, autocommit=True, **options)
        try:
            connection.backend = await (await connection.execute(_WHO, prepare=False)).fetchone()
            await connection.set_autocommit(autocommit)
        except BaseException:
            await connection.close()
            raise
        connection.opened_at = monotonic()
        return connection

    async def wait(self, gen: Waiting[T], *arguments: Any, **options: Any) -> T:
        """Wait for the server, unless it has fallen silent."""
        return await super().wait(_attended(self, gen), *arguments, **options)

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


class ThreadConnection(psycopg.Connection[Any]):
    """A connection for threads."""

    patience = OURS
    backend: tuple[int, float] | None = None
    opened_at = float("inf")

    @classmethod
    def connect(cls, *arguments: Any, autocommit: bool = False, **options: Any) -> Self:
        """Connect, and learn which server process serves it."""
        connection = super().connect(*arguments, autocommit=True, **options)
        try:
            connection.backend = connection.execute(_WHO, prepare=False).fetchone()
            connection.set_autocommit(autocommit)
        except BaseException:
            connection.close()
            raise
        connection.opened_at = monotonic()
        return connection

    def wait(self, gen: Waiting[T], *arguments: Any, **options: Any) -> T:
        """Wait for the server, unless it has fallen silent."""
        return super().wait(_attended(self, gen), *arguments, **options)


class _SecondConnection(psycopg.Connection[Any]):
    """A connection that asks about another one. It waits for no answer for long."""

    def wait(self, gen: Waiting[T], *arguments: Any, **options: Any) -> T:
        return super().wait(_limited(gen), *arguments, **options)


def part_with_silent(engine: Engine) -> None:
    """Have a connection replaced that a pool has had since before another one was found silent."""

    @event.listens_for(engine, "checkout")
    def _refuse(connection: Any, _: Any, __: Any) -> None:
        if getattr(connection, "driver_connection", connection).opened_at <= last_end():
            raise InvalidatePoolError("a connection of its time was silent")


def _attended(connection: Connection | ThreadConnection, waiting: Waiting[T]) -> Waiting[T]:
    """The same wait, which ends with an error if the server has fallen silent."""
    heard, doubt = monotonic(), None
    try:
        wish = next(waiting)
        while True:
            ready = yield wish
            if ready:
                heard = monotonic()
            elif doubt is None:
                if monotonic() - heard >= connection.patience.asks:
                    doubt = Doubt(heard, _place(connection), _question(connection))
            elif (reason := doubt.judge(connection.patience.limit)) is not None:
                if reason:
                    connection.pgconn.finish()
                    note_end()
                    raise OperationalError(reason)
                heard = monotonic()
            if doubt is not None and heard > doubt.since:
                doubt.end()
                doubt = None
            wish = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        if doubt is not None:
            doubt.end()


def _limited(waiting: Waiting[T]) -> Waiting[T]:
    deadline = monotonic() + ANSWER_SECONDS
    try:
        wish = next(waiting)
        while True:
            ready = yield wish
            if not ready and monotonic() > deadline:
                raise OperationalError(f"it got no answer within {ANSWER_SECONDS} s")
            wish = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


def _place(connection: Connection | ThreadConnection) -> str:
    return f"at {printable_name(connection.info.host)}:{connection.info.port}"


def _parameters(connection: Connection | ThreadConnection) -> dict[str, Any]:
    """The parameters to connect in the same way, but not to the same address of a host that has several."""
    parameters: dict[str, Any] = connection.info.get_parameters()
    parameters.pop("hostaddr", None)
    if connection.info.password:
        parameters["password"] = connection.info.password
    return parameters | {"connect_timeout": ANSWER_SECONDS, "application_name": "outboxkit asks"}


def _question(connection: Connection | ThreadConnection) -> Callable[[], Facts | None]:
    """Asks whether the server process has nothing to do, or is gone; and for the sessions whose lock it waits for."""
    parameters, backend = _parameters(connection), connection.backend
    idle_seconds = min(IDLE_SECONDS, connection.patience.asks / 2)

    def ask() -> Facts | None:
        with _SecondConnection.connect(autocommit=True, prepare_threshold=None, **parameters) as second:
            if backend is None:
                return None
            row = second.execute(_WORKS, (idle_seconds, *backend)).fetchone()
            is_idle, holders = row or (True, None)
            if row and is_idle:
                with suppress(psycopg.Error):  # what it has locked would stay locked as long as the network is silent
                    second.execute("SELECT pg_terminate_backend(%s)", backend[:1])
        return bool(is_idle), holders and printable_name(holders)

    return ask
