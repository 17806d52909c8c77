"""The workers that are there: each relay, consumer and retention has a row of `outboxkit_worker`, and writes it again.

The row names the worker's sessions in the database. So one that was killed is known at once on a server, and one that
hangs is not taken for gone.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import structlog
from sqlalchemy import Connection, Engine, Row, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

from outboxkit import ids, statements
from outboxkit.database.session_names import (
    RELAY_LISTENER,
    is_of_consumer,
    may_be_of_queue,
    relay_name,
)
from outboxkit.errors.failures import first_line
from outboxkit.errors.figures import shell_word
from outboxkit.errors.sqlstates import TRANSIENT, sqlstate_of
from outboxkit.message import DEFAULT_DESTINATION, NAME_LIMIT, storable
from outboxkit.runtime.outage import what_is_away
from outboxkit.statements.dialects import is_server
from outboxkit.statements.server import moment

RELAY, CONSUMER, RETENTION = "relay", "consumer", "retention"
"""The kinds of workers. The relays of a destination and the consumers of a queue can be paused."""
WRITE_SECONDS = 5.0
"""The time between two writes of a row."""
GONE_AFTER = timedelta(seconds=15)
"""A worker that was not seen for so long is gone, or hangs if a session of it is still connected."""
FORGOTTEN = timedelta(hours=1)
"""A row that is so old is deleted by the next worker that starts."""
LEAVING_SECONDS = 2.0
RATE_SECONDS = 1.0
"""The shortest time that a rate is of."""


def relay_command(destination: str) -> str:
    """The command that starts a relay of this destination, to paste: one for an API takes the API's URL."""
    if destination == DEFAULT_DESTINATION:
        return "outboxkit relay"
    return f"outboxkit relay --destination {shell_word(destination)} --broker-url URL"


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker as its row tells.

    Attributes:
        name: the relay's destination, or the consumer's queue; empty for a retention.
        broker: the broker's address, without user and password.
        exchange: the one that it publishes to, or that its queue is bound to; None if there is none.
        started_at, seen_at: by the database's clock.
        skew: the seconds by which its machine's clock is ahead; None: not known.
        places, taken: of a consumer: the transactions that it runs at once, and those that run now.
        rate: the messages that it publishes, or handles, a second; of the last seconds. None: not known, or silent.
        rests: whether it keeps a pause, with nothing in flight.
        queues: the lengths of a consumer's queue, its retry queues and its dead queue.
        sessions: the process ids of its sessions in the database.
        age_seconds: the time since it started.
        silent_seconds: the time for which it has not been seen, if that is long: it hangs. None: it is well.
    """

    kind: str
    name: str
    release: str
    host: str
    pid: int
    broker: str | None
    exchange: str | None
    started_at: datetime
    seen_at: datetime
    skew: float | None
    places: int | None
    taken: int | None
    rate: float | None
    rests: bool
    queues: Mapping[str, int]
    sessions: tuple[int, ...] = ()
    age_seconds: float = 0.0
    silent_seconds: float | None = None

    @property
    def process(self) -> str:
        """Its process, such as `pid 7 on shop-1`."""
        return f"pid {self.pid} on {self.host}"


def read_workers(connection: Connection) -> tuple[KnownWorker, ...]:
    """The workers that are there: seen lately, or with a session that is still connected."""
    now: datetime = connection.execute(moment(connection.dialect.name)).scalar_one()
    rows, connected = connection.execute(statements.workers.all_workers()).all(), dict[int, datetime | None]()
    if rows and is_server(connection.dialect.name):
        connected = {row.pid: row.since for row in connection.execute(statements.activity.sessions())}
    workers = (_worker(row, now) for row in rows)
    return tuple(each for each in workers if each.silent_seconds is None or _is_connected(each, connected))


def _is_connected(worker: KnownWorker, connected: Mapping[int, datetime | None]) -> bool:
    """Whether a session of it is still there. After a restart the server gives its process id to a younger one."""
    of_its_own = (connected[pid] for pid in worker.sessions if pid in connected)
    return any(since is None or since <= worker.seen_at for since in of_its_own)


def _worker(row: Row[Any], now: datetime) -> KnownWorker:
    own = {name: getattr(row, name) for name in KnownWorker.__slots__ if hasattr(row, name)}
    silence = now - row.seen_at
    own["sessions"] = _read(row.sessions, tuple[int, ...]) or ()
    own["queues"] = _read(row.queues, dict[str, int]) or {}
    own["age_seconds"] = (now - row.started_at).total_seconds()
    if silence <= GONE_AFTER:
        return KnownWorker(**own)
    return KnownWorker(**own | {"rate": None}, silent_seconds=silence.total_seconds())


def _read(text: str | None, kind: Any) -> Any:
    with suppress(ValueError, RecursionError):
        return None if text is None else msgspec.json.decode(text, type=kind)
    return None


def is_session_of(session: str, kind: str, name: str) -> bool:
    """Whether a session of this name may be one of a relay of this destination, or of a consumer of this queue."""
    if kind == RELAY:
        return session in {relay_name(name)} | ({RELAY_LISTENER} if name == DEFAULT_DESTINATION else set())
    return is_of_consumer(session) and may_be_of_queue(session, name)


Pids = WeakKeyDictionary[ConnectionPoolEntry, int]
"""The process ids of sessions, as the server knows them."""
_sessions = WeakKeyDictionary[Engine, Pids]()


def note_sessions(engine: Engine, *, beside: Engine | None = None) -> Pids:
    """The sessions that this engine opens from now on. With `beside`, both engines share one record of them."""
    if engine in _sessions or not is_server(engine.dialect.name):
        return _sessions.get(engine, Pids())
    pids = _sessions[engine] = Pids() if beside is None else note_sessions(beside)

    @event.listens_for(engine, "connect")
    def _note(connection: Any, record: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT pg_backend_pid()")
        pids[record] = cursor.fetchone()[0]
        connection.commit()

    return pids


@dataclass(eq=False)
class Presence:
    """The row of one worker: written every few seconds while it works, and deleted at its end.

    A role that may not write it works without, and a warning says so once. A file has no such rows: it has one writer.

    Attributes:
        taken: the number of its places that are taken now.
        done: the number of messages that it has published, or handled, so far; None: it does neither.
        ahead: the time by which its machine's clock is ahead; None: not known.
    """

    engine: AsyncEngine
    kind: str
    name: str = ""
    broker: str | None = None
    exchange: str | None = None
    places: int | None = None
    taken: Callable[[], int | None] = lambda: None
    done: Callable[[], int | None] = lambda: None
    ahead: Callable[[], timedelta | None] = lambda: None
    queues: Callable[[], Mapping[str, int]] = dict
    _id: str = field(default_factory=ids.new, init=False)
    _written: tuple[bool, Sequence[int]] | None = field(default=None, init=False)
    _due: float = field(default=0.0, init=False)
    _counted: tuple[float, int | None, float | None] = field(default=(0.0, None, None), init=False)
    _is_refused: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._pids = note_sessions(self.engine.sync_engine)
        self._is_refused = not is_server(self.engine.dialect.name)
        self._log = structlog.get_logger("outboxkit").bind(process=self.kind)

    async def write(self, connection: AsyncConnection, *, rests: bool = False) -> None:
        """Write the row if it is due, or if the worker begins or ends to rest. The connection autocommits."""
        now, state = asyncio.get_running_loop().time(), (rests, sorted(set(self._pids.values())))
        is_told = state == self._written or (not rests and self._written is not None and not self._written[0])
        if self._is_refused or (is_told and now < self._due):
            return
        dialect = connection.dialect.name
        try:
            if self._written is None:
                await connection.execute(statements.workers.delete_silent(dialect), {"ago": -FORGOTTEN})
            await connection.execute(statements.workers.write_worker(dialect), self._row(*state))
        except DBAPIError as error:
            if what_is_away(error) is not None:
                raise
            if str(sqlstate_of(error)).startswith(TRANSIENT):
                self._due = now + WRITE_SECONDS
                return
            self._is_refused, cure = True, "GRANT SELECT, INSERT, UPDATE, DELETE ON outboxkit_worker to this role"
            self._log.warning("this worker is in no list of workers", error=first_line(error), cure=cure)
        else:
            self._written, self._due = state, now + WRITE_SECONDS

    async def run(self) -> None:
        """Write the row again and again, until cancelled; then delete it."""
        try:
            while True:
                with suppress(SQLAlchemyError, OSError, TimeoutError):
                    async with self.engine.connect() as connection:
                        await connection.execution_options(isolation_level="AUTOCOMMIT")
                        await self.write(connection)
                await asyncio.sleep(WRITE_SECONDS)
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Delete the row, as far as that can be done soon."""
        if self._written is None:
            return
        self._written = None
        with suppress(SQLAlchemyError, OSError, TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS), self.engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                await connection.execute(statements.workers.delete_worker(), {"of": self._id})

    def _rate(self) -> float | None:
        """The messages a second since it was asked before; as then, if that was a moment ago."""
        now, done = asyncio.get_running_loop().time(), self.done()
        since, before, rate = self._counted
        if done is None or before is None:
            rate = None
        elif now - since < RATE_SECONDS:
            return rate
        else:
            rate = round(max(0, done - before) / (now - since), 2)
        self._counted = now, done, rate
        return rate

    def _row(self, rests: bool, sessions: Iterable[int]) -> dict[str, Any]:  # noqa: FBT001 - of `write` alone
        ahead = self.ahead()
        texts = {"name": self.name, "host": socket.gethostname(), "exchange": self.exchange}
        row = {name: None if text is None else storable(text)[:NAME_LIMIT] for name, text in texts.items()}
        return row | {
            "id": self._id,
            "kind": self.kind,
            "release": version("outboxkit"),
            "pid": os.getpid(),
            "broker": self.broker and storable(self.broker),
            "skew": None if ahead is None else round(ahead.total_seconds(), 3),
            "places": self.places,
            "taken": self.taken(),
            "rate": self._rate(),
            "rests": rests,
            "sessions": msgspec.json.encode([*sessions]).decode(),
            "queues": storable(msgspec.json.encode(self.queues()).decode()),
        }
