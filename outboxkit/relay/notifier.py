"""Waking up: how an idle relay learns of new messages, without a tax on every commit.

While a relay is recorded in `outboxkit_listener`, an insert into the outbox rings the bell: a NOTIFY, which takes a
lock of the whole server at commit. A relay that is kept busy is not recorded, so that nobody pays. What no bell
announces (a transaction that inserted before the sleeper was recorded, a pooler that swallows notifications) a net of
rare looks catches.

The bell is for the destination `default`: who inserts knows nothing of destinations. Relays of others poll.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Any

import psycopg
import structlog
from sqlalchemy import Executable, func, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.moments import read_bounded
from outboxkit.outage import Clock, jittered, pause, utc_now
from outboxkit.statements import wakeup as statements

NAME = "outboxkit relay bell"
"""The `application_name` of a relay's connection for waiting."""
NET = timedelta(seconds=1.2)
"""How often a sleeping relay looks although nothing rang."""
TURN_SECONDS = 15.0
"""How long it sleeps at most: the caller's own look sees more, what is below the floor for one."""
LASTS_SECONDS, RENEW_SECONDS = 15.0, 5.0
"""How long a sleeper that was killed is still rung for, and how often a living one says that it is there."""
TEST_SECONDS, RETEST_SECONDS = 1.0, 60.0
"""How long a notification may take to arrive in the test, and when to test again where it did not."""
QUIET_SECONDS, RUSH_TURNS, LONG_SECONDS, LONG_TURNS = 0.002, 20, 0.1, 3
"""Without such a sleep between them that many turns are a rush, and where they take long, fewer are."""
RUSH_SECONDS, RUSH_PAUSES = 2.0, (0.005, 0.02)
"""How long a rush is taken to last after it was last seen, and the shortest and longest pause in it."""


class Listener:
    """A connection that hears the bell, and says in the database that somebody listens. PostgreSQL on psycopg only.

    Args:
        engine: where the connection comes from, and the one of the test that notifications arrive.
        monotonic: seconds, for tests.
    """

    def __init__(self, engine: AsyncEngine, *, monotonic: Callable[[], float]) -> None:
        self.rings = False
        self.is_recorded = False
        self._engine = engine
        self._monotonic = monotonic
        self._name = f"{socket.gethostname()[:200]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._connection: AsyncConnection | None = None
        self._channel = ""
        self._tested_at = self._recorded_at = float("-inf")
        self._is_known_deaf = False
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def connect(self) -> None:
        """Have a connection that listens; `rings` tells whether notifications arrive there.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        if self._connection is None:
            self._connection = await self._engine.connect()
            await self._connection.execution_options(isolation_level="AUTOCOMMIT")
            read_bounded(self._driver())
            await self._execute(select(func.set_config("application_name", NAME, False)))  # noqa: FBT003 - SQL's own
            await self._execute(statements.forget_the_gone())
            await self._test()
        elif not self.rings and self._monotonic() - self._tested_at > RETEST_SECONDS:
            await self._test()

    async def record(self) -> None:
        """Say that somebody sleeps here, unless that has just been said."""
        if self.is_recorded and self._monotonic() - self._recorded_at < RENEW_SECONDS:
            return
        if not self.is_recorded:
            await self._execute(statements.listen(self._channel))
        await self._execute(statements.go_to_sleep(), name=self._name, seconds=LASTS_SECONDS)
        self.is_recorded, self._recorded_at = True, self._monotonic()

    async def withdraw(self) -> None:
        """Say that nobody sleeps here any more, and hear nothing."""
        if self.is_recorded:
            self.is_recorded = False
            await self._execute(statements.wake_up(), name=self._name)
            await self._execute(statements.stop_listening())

    async def look(self, floor: int) -> tuple[int | None, datetime | None]:
        """The lowest position above the floor that waits for nothing, and the earliest due time, of `default`."""
        look = statements.something_to_do()
        position, due_at = (await self._execute(look, destination=DEFAULT_DESTINATION, floor=floor)).one()
        return position, due_at

    async def wait_for_notification(self, stop: asyncio.Event, seconds: float) -> bool:
        """Wait for the bell, for `stop`, or for so long; whether it rang, or can ring no more."""
        listening = asyncio.ensure_future(self._rung(seconds))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            stopping.cancel()
            await asyncio.wait((listening, stopping))  # until the connection is free for the next statement
        return not listening.cancelled() and listening.result()

    async def close(self) -> None:
        """Withdraw and hang up. Never fails."""
        with suppress(DBAPIError):
            await self.withdraw()
        await self._hang_up()

    async def _rung(self, seconds: float) -> bool:
        try:
            async with aclosing(self._driver().notifies(timeout=seconds, stop_after=1)) as heard:
                return any([notification.payload == "" async for notification in heard])
        except psycopg.Error:
            await self._hang_up()
            return True

    async def _test(self) -> None:
        self.rings, self._tested_at = False, self._monotonic()
        self._channel, may_ring = (await self._execute(statements.channel())).one()
        if may_ring:
            await self._execute(statements.listen(self._channel))
            self.rings = await self._arrives(secrets.token_hex(8))
            if not self.rings:
                await self._execute(statements.stop_listening())
        if not self.rings and not self._is_known_deaf:
            self._is_known_deaf = True
            why = (
                "notifications do not arrive: a pooler in transaction mode swallows them"
                if may_ring
                else "the server allows prepared transactions, which a notification would make fail"
            )
            self._log.warning("commits cannot wake this relay, it polls", reason=why)

    async def _arrives(self, payload: str) -> bool:
        async with self._engine.connect() as other:
            await other.execute(statements.notify(), {"channel": self._channel, "payload": payload})
            await other.commit()
        try:
            async with aclosing(self._driver().notifies(timeout=TEST_SECONDS)) as heard:
                async for notification in heard:
                    if notification.payload == payload:
                        return True
        except psycopg.Error as broken:
            await self._hang_up()
            raise OperationalError("LISTEN", None, broken, connection_invalidated=True) from broken
        return False

    async def _execute(self, statement: Executable, **parameters: object) -> Any:
        if self._connection is None:
            raise RuntimeError("not connected: connect() comes first")
        try:
            return await self._connection.execute(statement, parameters)
        except BaseException:  # also where the task was cancelled: nobody knows what the connection is in the midst of
            await self._hang_up()
            raise

    def _driver(self) -> psycopg.AsyncConnection[Any]:
        proxied = self._connection.sync_connection if self._connection is not None else None
        driver = proxied.connection.driver_connection if proxied is not None else None
        if not isinstance(driver, psycopg.AsyncConnection):
            raise TypeError(f"the connection's driver is {driver!r}; psycopg's AsyncConnection is accepted")
        return driver

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self.is_recorded = False
        if connection is not None:
            await connection.invalidate()  # it listens: nobody else may get it from the pool
            await connection.close()


class Notifier:
    """What an idle relay waits for: the bell, the time of a delayed message, a look now and then.

    On SQLite, with another driver than psycopg, for a destination but `default`, or where notifications do not arrive,
    it polls.

    Args:
        engine: the relay's; one of its connections is kept.
        destination: the relay's.
        poll_interval: how long a relay sleeps where no bell can wake it.
        net: how long, about, where one can.
        clock: the relay's, which due times are compared with.
        monotonic: seconds, for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        destination: str = DEFAULT_DESTINATION,
        poll_interval: timedelta,
        net: timedelta = NET,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        may_ring = engine.dialect.driver == "psycopg" and destination == DEFAULT_DESTINATION
        self._bell = Listener(engine, monotonic=monotonic) if may_ring else None
        self._poll_seconds, self._net_seconds = poll_interval.total_seconds(), net.total_seconds()
        self._clock = clock
        self._monotonic = monotonic
        self._looked_in_vain = False
        self._restless_turns, self._restless_since = 0, 0.0
        self._rush_ends = float("-inf")
        self._rush_pause = RUSH_PAUSES[0]

    async def wait(self, stop: asyncio.Event, *, floor: int = 0) -> None:
        """Sleep until there is something to do, or may be, or `stop` is set. To be called after a turn found nothing.

        Args:
            stop: ends the sleep.
            floor: a position below which no ready row is looked for.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        if self._bell is None:
            await pause(stop, jittered(self._poll_seconds))
        elif self._monotonic() < self._rush_ends:
            await pause(stop, jittered(self._rush_pause))
            self._rush_pause = min(self._rush_pause * 2, RUSH_PAUSES[1])
        else:
            await self._bell.connect()
            await self._sleep(self._bell, stop, floor)

    async def busy(self) -> None:
        """Note that a turn found something. To be called after each; it costs a statement when a rush begins."""
        self._looked_in_vain = False
        self._rush_pause = RUSH_PAUSES[0]
        if (now := self._monotonic()) < self._rush_ends:
            self._rush_ends = now + RUSH_SECONDS
        await self._turned()

    async def close(self) -> None:
        """Take the sleeper's row back and close the connection. Never fails."""
        if self._bell is not None:
            await self._bell.close()

    async def _sleep(self, bell: Listener, stop: asyncio.Event, floor: int) -> None:
        began = self._monotonic()
        while not stop.is_set() and self._monotonic() - began < TURN_SECONDS:
            if bell.rings:
                await bell.record()
            position, due_at = await bell.look(floor)
            left = (due_at - self._clock()).total_seconds() if due_at is not None else float("inf")
            if (position is not None or left <= 0) and not self._looked_in_vain:
                self._looked_in_vain = True  # what another relay holds is seen, too: the next look waits
                await self._turned()
                return
            net = jittered(self._net_seconds if bell.rings else self._poll_seconds)
            asleep_at = self._monotonic()
            if await bell.wait_for_notification(stop, min(net, left) if left > 0 else net):
                if self._monotonic() - asleep_at < QUIET_SECONDS:
                    await self._turned()
                else:
                    self._restless_turns = 0
                return
            self._looked_in_vain = False
            self._restless_turns = 0

    async def _turned(self) -> None:
        """Count a turn that no sleep came before; many are a rush, in which nobody is to ring."""
        now = self._monotonic()
        if self._restless_turns == 0:
            self._restless_since = now
        self._restless_turns += 1
        is_long = now - self._restless_since > LONG_SECONDS
        if self._bell is None or self._restless_turns < (LONG_TURNS if is_long else RUSH_TURNS):
            return
        self._restless_turns = 0
        self._rush_ends = now + RUSH_SECONDS
        with suppress(DBAPIError):  # the row ends by itself
            await self._bell.withdraw()
