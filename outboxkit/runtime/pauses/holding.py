"""Whether a pause is kept: processes that rest acknowledge it, and the sessions of the others are found.

A process that rests keeps a session with shared advisory locks, one for each session that it has. Their keys are the
pause and the session's process id. They go with the session, so that a process that has ended holds nothing, and no
role needs a right to write. PostgreSQL only: a file knows no sessions.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, Row, event
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import ConnectionPoolEntry

from outboxkit import statements
from outboxkit.database.session_names import RELAY as RELAYS
from outboxkit.database.session_names import RELAY_LISTENER, is_of_consumer, may_be_of_queue, session_name
from outboxkit.errors.wording import many
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.runtime.pauses import RELAY, Pause
from outboxkit.statements.dialects import is_server

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class OtherSession:
    """A session that the pause is about, of a process that has not acknowledged it."""

    pid: int
    name: str
    address: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Holding:
    """The processes that a pause is about.

    Attributes:
        process, name: of the pause.
        holders: the number of processes that have acknowledged it: nothing is in flight there.
        others: sessions of processes that have not. They are busy still, hang, or know nothing of pauses.
    """

    process: str
    name: str
    holders: int
    others: tuple[OtherSession, ...]

    def is_of(self, pause: Pause) -> bool:
        """Whether it is about this pause."""
        return (self.process, self.name) == (pause.process, pause.name)

    def __str__(self) -> str:
        """`2 relays hold`, or `1 of at least 2 relays holds; session … has not acknowledged the pause, …`."""
        holds = "holds" if self.holders == 1 else "hold"
        if not self.others:
            return f"{many(self.holders, self.process)} {holds}" if self.holders else f"no {self.process} is connected"
        share = f"{self.holders} of at least {self.holders + 1} {self.process}s {holds}"
        hosts = ", ".join(sorted({each.address for each in self.others if each.address}))
        pids = ", ".join(str(each.pid) for each in self.others[:MOST_NAMED])
        more = ", …" if len(self.others) > MOST_NAMED else ""
        where = f" from {hosts}" if hosts else ""
        have = "has" if len(self.others) == 1 else "have"
        named = f"{many(len(self.others), 'session')}{where} ({pids}{more}) {have}"
        return f"{share}; {named} not acknowledged the pause, and may go on"


def read_holding(connection: Connection, pauses: Sequence[Pause]) -> tuple[Holding, ...]:
    """The processes that each of these pauses is about, in the connection's transaction; nothing of a file."""
    if not pauses or not is_server(connection.dialect.name):
        return ()
    sessions = connection.execute(statements.activity.sessions()).all()
    holding = list[Holding]()
    for pause in pauses:
        key = {"pause": lock_key(pause.process, pause.name)}
        rows = connection.execute(statements.operations.acknowledgements(), key).all()
        acknowledged, sets = {row.session for row in rows}, dict[int, set[int]]()
        for row in rows:
            sets.setdefault(row.keeper, set()).add(row.session)
        ours = [each for each in sessions if _is_of(each, pause) and each.pid not in acknowledged]
        others = tuple(OtherSession(each.pid, each.name, each.address, each.since) for each in ours)
        holding.append(Holding(pause.process, pause.name, len({min(each) for each in sets.values()}), others))
    return tuple(holding)


def _is_of(session: Row[Any], pause: Pause) -> bool:
    if pause.process == RELAY:
        names = {relay_name(pause.name)} | ({RELAY_LISTENER} if pause.name == DEFAULT_DESTINATION else set())
        return session.name in names
    return is_of_consumer(session.name) and may_be_of_queue(session.name, pause.name)


def relay_name(destination: str) -> str:
    """The `application_name` of a relay's sessions: with its destination, unless that is the broker."""
    return session_name(RELAYS, () if destination == DEFAULT_DESTINATION else (destination,))


def lock_key(process: str, name: str) -> int:
    """The first key of the locks by which this process acknowledges its pause: a positive number of 31 bits."""
    return zlib.crc32(f"outboxkit {process} {name}".encode()) & 0x7FFF_FFFF


Pids = WeakKeyDictionary[ConnectionPoolEntry, int]
"""The process ids of sessions, as the server knows them."""
_sessions = WeakKeyDictionary[Engine, Pids]()


def note_sessions(engine: Engine, *, beside: Engine | None = None) -> Pids:
    """The sessions that this engine opens from now on; those of an engine beside another one count as that one's."""
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


class Acknowledgement:
    """The locks of one process that rests.

    Args:
        process, name: as of its pause.
        engine: of its sessions. Consumers of several queues share one, and so do those of a queue's shards.

    Attributes:
        key: the first key of the locks.
        is_busy: whether this part of the process works, or may.
    """

    def __init__(self, process: str, name: str, engine: Engine) -> None:
        self.is_busy = False
        self.key, self._pids = lock_key(process, name), note_sessions(engine)
        self._locked = set[int]()
        self._parts = _parts.setdefault(engine, WeakSet())
        self._parts.add(self)

    async def lock(self, connection: AsyncConnection) -> None:
        """Acknowledge the pause for each session of the process, once all that it is about rests there.

        The locks last as long as this connection.
        """
        if any(part.is_busy for part in self._parts if part.key == self.key):
            return
        if new := set(self._pids.values()) - self._locked:
            await connection.execute(statements.operations.acknowledge(), {"pause": self.key, "pids": sorted(new)})
            self._locked |= new

    def is_gone(self) -> None:
        """Note that the connection with the locks has been closed."""
        self._locked.clear()


_parts = WeakKeyDictionary[Engine, WeakSet[Acknowledgement]]()
"""The parts of a process, by the engine that they share."""
