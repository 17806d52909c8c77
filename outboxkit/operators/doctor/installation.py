"""The installation that checks look at: settings, database, handlers; and what a check is."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import statements
from outboxkit.inbox import Handler
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime.outage import Clock, utc_now
from outboxkit.runtime.settings import Settings
from outboxkit.statements.dialects import is_server


@dataclass(frozen=True)
class Thresholds:
    """The values from which something is worth a finding; tests set them lower.

    Attributes:
        waiting: how long a message may wait for its relay.
        transaction: how long a transaction may stay open; ten times as long is a problem.
        behind: transactions since the oldest one that vacuum must spare, if its age is not known.
        lock: how long a session may hold a lock on a table that keeps others from writing.
        dead_letter: how long a dead letter may stay undecided.
        consumer: how long ago a consumer may have been seen; it registers every hour.
        forgotten: how much longer than its retention a row may stay, until a pruner is missed.
        skew: how far the clocks of this machine and the database may be apart; ten times as far is a problem.
        dead_rows: dead rows of a table that vacuum may leave.
        connections: the share of the server's connections that may be used.
        transaction_ids: the age of the oldest transaction id; a server stops at about two thousand million.
        wal_bytes: how much write-ahead log an unused replication slot may keep.
        check_seconds: how long a check may take.
    """

    waiting: timedelta = timedelta(minutes=1)
    transaction: timedelta = timedelta(minutes=5)
    behind: int = 100_000
    lock: timedelta = timedelta(seconds=10)
    dead_letter: timedelta = timedelta(days=1)
    consumer: timedelta = timedelta(hours=2)
    forgotten: timedelta = timedelta(days=2)
    skew: timedelta = timedelta(seconds=30)
    dead_rows: int = 100_000
    connections: float = 0.9
    transaction_ids: int = 1_000_000_000
    wal_bytes: int = 1 << 30
    check_seconds: float = 5.0


@dataclass(frozen=True)
class Installation:
    """The parts of an installation that checks look at.

    Attributes:
        settings: of this process, and so of this environment.
        engine: on the database; None if only the broker is examined.
        handlers: those of the modules that were named; none if none were.
        thresholds: from which value on something is worth a finding.
        clock: this machine's.
        memory: what one check has read for those after it.
    """

    settings: Settings
    engine: AsyncEngine | None = None
    handlers: tuple[Handler, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    clock: Clock = utc_now
    memory: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def has_server(self) -> bool:
        """Whether the database is a server, and not a file."""
        return self.engine is not None and is_server(self.engine.dialect.name)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that reads by indexes, waits for no lock for long, and is rolled back.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        if self.engine is None:
            raise RuntimeError("a check of the database was run without one")
        async with self.engine.connect() as connection:
            if is_server(connection.dialect.name):
                await connection.execute(statements.status.forbid_sorting())
                await connection.execute(statements.server.bound_waits())
            yield connection


Find = Callable[[Installation], AsyncGenerator[Diagnosis]]
"""An async generator that looks, changes nothing, and yields what it finds."""


@dataclass(frozen=True)
class Check:
    """A check of one concern.

    Attributes:
        name: what it is about, such as `durability`; unique on its side.
        find: looks, and yields findings.
        needs_database: whether it asks the database at all, so that it is left out if that is away.
        needs_tables: whether it reads outboxkit's tables, so that it is left out if they are missing.
        needs_server: whether it asks what only a database server has, so that it is left out on a file.
        applies: whether it can find anything after what earlier ones have found; it is left out if not.
    """

    name: str
    find: Find
    needs_database: bool = True
    needs_tables: bool = False
    needs_server: bool = False
    applies: Callable[[Installation], bool] = field(default=lambda _: True)
