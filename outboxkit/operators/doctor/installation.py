"""The installation that is examined, its database as a check reads it, and what a check is."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import statements
from outboxkit.inbox import Handler
from outboxkit.operators.findings import LIMITS, Diagnosis, Limits
from outboxkit.runtime.outage import Clock, utc_now
from outboxkit.runtime.settings import Settings
from outboxkit.statements.dialects import is_server


@dataclass(frozen=True)
class Installation:
    """The parts of an installation that checks look at.

    Attributes:
        engine: on the database; None if only the broker is examined, without what the tables tell.
        handlers: those of the modules that were named; none if none were.
    """

    settings: Settings
    engine: AsyncEngine | None = None
    handlers: tuple[Handler, ...] = ()
    limits: Limits = LIMITS
    clock: Clock = utc_now

    def opened(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection to the database."""
        if self.engine is None:
            raise RuntimeError("the database is examined without an engine")
        return self.engine.connect()


class Database:
    """The database as one check reads it: a transaction that uses indexes, waits for no lock for long, and only reads.

    Attributes:
        now: the time by its clock.
    """

    def __init__(self, connection: Connection, installation: Installation) -> None:
        self.connection, self.installation = connection, installation
        self.settings, self.limits = installation.settings, installation.limits
        self.is_server = is_server(connection.dialect.name)
        if self.is_server:
            connection.execute(statements.status.forbid_sorting())
            connection.execute(statements.server.bound_waits())
        self.now: datetime = self.value(statements.server.moment(connection.dialect.name))

    def rows(self, statement: Executable, **parameters: object) -> Sequence[Any]:
        """All rows of a statement."""
        return self.connection.execute(statement, parameters).all()

    def value(self, statement: Executable, **parameters: object) -> Any:
        """The one value of a statement."""
        return self.connection.execute(statement, parameters).scalar_one()


@dataclass(frozen=True)
class Check:
    """A check of the database.

    Attributes:
        find: reads, changes nothing, and yields what it finds.
        needs_tables: whether it reads outboxkit's tables, so that it is left out if they are missing.
        needs_server: whether it asks what only a database server has, so that it is left out on a file.
    """

    name: str
    find: Callable[[Database], Iterable[Diagnosis]]
    needs_tables: bool = True
    needs_server: bool = True
