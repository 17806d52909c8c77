"""Waking up: how an idle relay learns of new messages, without a tax on every commit.

While a relay is registered in `outboxkit_listener`, an insert into the outbox notifies: a NOTIFY, which takes a lock of
the whole server at commit. A busy relay is not registered, so that no writer pays. A fallback poll finds what no
notification announces, such as a transaction that inserted before the listener was registered.

Only relays of the destination `default` listen: the trigger knows nothing of destinations. Relays of others poll.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import psycopg
import structlog
from sqlalchemy import Executable, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import statements
from outboxkit.database.driver_rows import driver_of, fetch
from outboxkit.database.session_names import RELAY_LISTENER
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.runtime.outage import Clock, jittered, sleep_unless_stopped, utc_now

FALLBACK_POLL = timedelta(seconds=1.2)
"""The interval of the fallback poll: an idle relay that gets no notification queries the outbox so often."""
LONGEST_IDLE_SECONDS = 15.0
"""The longest wait. The claim that follows it may also find rows below the floor."""
LASTS_SECONDS, RENEW_SECONDS = 15.0, 5.0
"""A listener's row expires after 15 s, so inserts notify that long for a killed relay. It is renewed every 5 s."""
BURST_GAP_SECONDS, BURST_TURNS, LONG_BURST_SECONDS, LONG_BURST_TURNS = 0.002, 20, 0.1, 3
"""A burst is 20 turns without a wait of 2 ms between them, or 3 turns if they span over 100 ms."""
CAUGHT_UP_SECONDS = 0.1
"""The shortest interval between two queries of a registered relay that has caught up: an insert wakes it."""
BURST_SECONDS, BURST_WAITS = 2.0, (0.005, 0.02)
"""A burst ends 2 s after its last turn. In it an idle relay waits 5 ms, then longer, up to 20 ms."""


class Listener:
    """A connection that listens, and the row by which inserts know that it does. PostgreSQL on psycopg only.

    Attributes:
        is_notified: whether inserts notify a registered listener, as far as it is known.
    """

    def __init__(self, engine: AsyncEngine, *, monotonic: Callable[[], float]) -> None:
        self.is_notified = False
        self.is_registered = False
        self._engine = engine
        self._monotonic = monotonic
        self._name = f"{socket.gethostname()[:200]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._connection: AsyncConnection | None = None
        self._channel = ""
        self._registered_at = float("-inf")
        self._has_warned = False
        self._something_to_do = statements.notifier.something_to_do()
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def connect(self) -> None:
        """Open the connection that listens, and ask the server whether inserts notify: `is_notified`."""
        if self._connection is not None:
            return
        self._connection = await self._engine.connect()
        await self._connection.execution_options(isolation_level="AUTOCOMMIT")
        await self._execute(select(func.set_config("application_name", RELAY_LISTENER, False)))  # noqa: FBT003 - SQL's own
        await self._execute(statements.notifier.forget_listeners())
        self._channel, self.is_notified = (await self._execute(statements.notifier.channel())).one()
        if not self.is_notified and not self._has_warned:
            self._has_warned = True
            why = "the server allows prepared transactions, which a notification would make fail"
            self._log.warning("commits cannot wake this relay, it polls", reason=why)

    async def register(self) -> None:
        """Listen, and register as a listener, for which inserts notify; at most once in `RENEW_SECONDS`."""
        if self.is_registered and self._monotonic() - self._registered_at < RENEW_SECONDS:
            return
        if not self.is_registered:
            await self._execute(statements.notifier.listen(self._channel))
        await self._execute(statements.notifier.register_listener(), name=self._name, seconds=LASTS_SECONDS)
        self.is_registered, self._registered_at = True, self._monotonic()

    async def withdraw(self) -> None:
        """Remove the listener's row, so that inserts do not notify for this relay, and stop listening."""
        if self.is_registered:
            self.is_registered = False
            await self._execute(statements.notifier.remove_listener(), name=self._name)
            await self._execute(statements.notifier.stop_listening())

    async def query(self, floor: int) -> tuple[int | None, datetime | None]:
        """The lowest position above the floor that waits for nothing, and the earliest due time, of `default`."""
        parameters = {"destination": DEFAULT_DESTINATION, "floor": floor}
        async with self._used() as connection:
            ((position, due_at),) = await fetch(connection, self._something_to_do, parameters)
        return position, due_at

    async def wait_for_notification(self, stop: asyncio.Event, seconds: float) -> bool:
        """Wait for a notification, for `stop`, or for so long; whether one came, or the connection was lost."""
        listening = asyncio.ensure_future(self._notified(seconds))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not listening.done():
                listening.cancel()
                await asyncio.wait((listening,))  # until the connection is free for the next statement
        return not listening.cancelled() and listening.result()

    async def close(self) -> None:
        """Withdraw and close the connection. Never fails."""
        with suppress(DBAPIError):
            await self.withdraw()
        await self._disconnect()

    async def _notified(self, seconds: float) -> bool:
        try:
            async with aclosing(self._driver().notifies(timeout=seconds, stop_after=1)) as heard:
                return bool([each async for each in heard])
        except psycopg.Error:
            await self._disconnect()
            return True

    async def _execute(self, statement: Executable, **parameters: object) -> Any:
        async with self._used() as connection:
            return await connection.execute(statement, parameters)

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[AsyncConnection]:
        try:
            yield self._opened
        except (Exception, asyncio.CancelledError):  # the state of the connection is unknown
            await self._disconnect()
            raise

    @property
    def _opened(self) -> AsyncConnection:
        if self._connection is None:
            raise RuntimeError("not connected: connect() comes first")
        return self._connection

    def _driver(self) -> psycopg.AsyncConnection[Any]:
        return driver_of(self._opened)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self.is_registered = False
        if connection is not None:
            await connection.invalidate()  # it listens, so it must not go back to the pool
            await connection.close()


class Notifier:
    """The wait of an idle relay: for a notification, the time of a delayed message, or a fallback poll.

    On SQLite, for a destination but `default`, or if inserts must not notify, it polls.

    Args:
        poll_interval: how long a relay waits if no notification can wake it.
        fallback_poll: how long, about, if one can.
        clock: the relay's, which due times are compared with.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        destination: str = DEFAULT_DESTINATION,
        poll_interval: timedelta,
        fallback_poll: timedelta = FALLBACK_POLL,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        may_listen = engine.dialect.driver == "psycopg" and destination == DEFAULT_DESTINATION
        self._listener = Listener(engine, monotonic=monotonic) if may_listen else None
        self._poll_seconds, self._fallback_seconds = poll_interval.total_seconds(), fallback_poll.total_seconds()
        self._clock = clock
        self._monotonic = monotonic
        self._queried_in_vain = False
        self._queried_at = float("-inf")
        self._due_at: datetime | None = None
        self._busy_turns, self._busy_since = 0, 0.0
        self._burst_ends = float("-inf")
        self._burst_wait = BURST_WAITS[0]

    @property
    def is_woken(self) -> bool:
        """Whether a commit ends the wait, or the wait is a burst's short one."""
        return self._listener is not None and (self._listener.is_registered or self._monotonic() < self._burst_ends)

    async def wait(self, stop: asyncio.Event, *, floor: int = 0, caught_up: bool = False) -> None:
        """Wait until there is something to do, or may be, or `stop` is set.

        To be called after a turn that found nothing, or the last ready rows.

        Args:
            stop: ends the wait.
            floor: the position above which ready rows are searched.
            caught_up: the turn has published the last ready rows. Later inserts have notified a registered relay.
        """
        if self._listener is None:
            await sleep_unless_stopped(stop, jittered(self._poll_seconds))
        elif self._monotonic() < self._burst_ends:
            await sleep_unless_stopped(stop, jittered(self._burst_wait))
            self._burst_wait = min(self._burst_wait * 2, BURST_WAITS[1])
        else:
            await self._listener.connect()
            await self._listen(self._listener, stop, floor, caught_up=caught_up and self._listener.is_registered)

    async def busy(self) -> None:
        """Count a turn that found rows; called after each of them. A statement runs if a burst begins."""
        self._queried_in_vain = False
        self._burst_wait = BURST_WAITS[0]
        if (now := self._monotonic()) < self._burst_ends:
            self._burst_ends = now + BURST_SECONDS
        await self._turned()

    async def close(self) -> None:
        """Withdraw the listener and close its connection, until the next wait. Never fails."""
        if self._listener is not None:
            await self._listener.close()

    async def _listen(self, listener: Listener, stop: asyncio.Event, floor: int, *, caught_up: bool) -> None:
        began = self._monotonic()
        while not stop.is_set() and self._monotonic() - began < LONGEST_IDLE_SECONDS:
            if listener.is_notified:
                await listener.register()
            poll = jittered(self._fallback_seconds if listener.is_notified else self._poll_seconds)
            position, left = None, self._seconds_left()
            if caught_up and left > 0 and self._monotonic() - self._queried_at < CAUGHT_UP_SECONDS:
                caught_up, poll = False, CAUGHT_UP_SECONDS
            else:
                position, self._due_at = await listener.query(floor)
                self._queried_at, left = self._monotonic(), self._seconds_left()
            if (position is not None or left <= 0) and not self._queried_in_vain:
                self._queried_in_vain = True  # the row may be another relay's: the next wait ends with a poll only
                await self._turned()
                return
            waits_since = self._monotonic()
            if await listener.wait_for_notification(stop, min(poll, left) if left > 0 else poll):
                if self._monotonic() - waits_since < BURST_GAP_SECONDS:
                    await self._turned()
                else:
                    self._busy_turns = 0
                return
            self._queried_in_vain = False
            self._busy_turns = 0

    def _seconds_left(self) -> float:
        """Seconds until the next delayed message is due, by the last query; infinite if there is none."""
        return (self._due_at - self._clock()).total_seconds() if self._due_at is not None else float("inf")

    async def _turned(self) -> None:
        """Count a turn without a wait before it. Enough of them begin a burst, in which inserts do not notify."""
        now = self._monotonic()
        if self._busy_turns == 0:
            self._busy_since = now
        self._busy_turns += 1
        is_long = now - self._busy_since > LONG_BURST_SECONDS
        if self._listener is None or self._busy_turns < (LONG_BURST_TURNS if is_long else BURST_TURNS):
            return
        self._busy_turns = 0
        self._burst_ends = now + BURST_SECONDS
        with suppress(DBAPIError):  # the row ends by itself
            await self._listener.withdraw()
