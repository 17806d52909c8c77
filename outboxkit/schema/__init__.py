"""The tables in a database: their version, and the check that this code can work with them.

The version tells which migrations ran. A partition, a column or the trigger may have been dropped since then.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import DDL, Connection, inspect
from sqlalchemy.exc import DBAPIError

from outboxkit import statements, tables
from outboxkit.database import pooler
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import (
    NO_RIGHT,
    ROLE,
    is_missing_column,
    is_missing_table,
    is_refused_row,
    sqlstate_of,
)
from outboxkit.statements.dialects import NEWEST, OLDEST, is_server
from outboxkit.tables import attempt, idempotency, inbox, metadata, outbox, published
from outboxkit.tables.postgresql import (
    ANSWER_REQUESTS,
    ANSWERED,
    GUARD,
    GUARD_INBOX,
    INDEX_PROCESSED,
    NOTIFY,
    PROCESSED,
    TRIGGER,
    default_partition_again,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a table.

    Attributes:
        kind: `table`, `column`, `partition` (the one called `default`), `index` or `trigger`.
    """

    kind: str
    table: str
    name: str

    def __str__(self) -> str:
        """The part's name in an error."""
        return {
            "table": f"table {self.table}",
            "column": f"column {self.table}.{self.name}",
            "partition": f"the {self.name} partition of {self.table}",
        }.get(self.kind, f"{self.kind} {self.name} of {self.table}")


READ_PARTS = ("table", "column")
"""The kinds of parts without which nothing can be read."""
VITAL_PARTS = (*READ_PARTS, "partition")
"""The kinds of parts without which nothing works; without an index or the trigger it is slower."""
ALL_PARTS = (*VITAL_PARTS, "index", "trigger")
_REPAIRABLE = ("partition", "index", "trigger")
"""Kinds that `repair_parts` creates again: they hold no rows of their own."""


def missing(connection: Connection) -> list[Part]:
    """The parts that tables of this version should have and do not, in the connection's own search path."""
    existing = {Part(*row) for row in connection.execute(statements.schema.existing_parts(connection.dialect.name))}
    tables = {part.table for part in existing}
    expected = _expected(divided=is_server(connection.dialect.name))
    return [part for part in expected if part not in existing and (part.kind == "table" or part.table in tables)]


def check_parts(connection: Connection, kinds: Collection[str] = ALL_PARTS) -> None:
    """Make sure that no part of these kinds is missing.

    Raises:
        SchemaError: one is; the text names it, and the cure.
    """
    parts = [part for part in missing(connection) if part.kind in kinds]
    if not parts:
        return
    irreparable = [part for part in parts if part.kind not in _REPAIRABLE]
    cure = (
        "undo what dropped it, a revision of your Alembic history for example, or restore it from a backup"
        if irreparable
        else "run `outboxkit migrate`, which creates it again; rows that were in it are lost"
        if parts[0].kind == "partition"
        else "run `outboxkit migrate`, which creates it again"
    )
    names = ", ".join(str(part) for part in (irreparable or parts))
    raise SchemaError(f"a part of the outboxkit tables is missing: {names}: {cure}")


def repair_parts(connection: Connection) -> list[Part]:
    """Create missing default partitions, indexes and the trigger, in the connection's transaction; returns them.

    A default partition that was only detached is attached again, with its rows.

    Raises:
        SchemaError: a table or a column is missing.
    """
    check_parts(connection, READ_PARTS)
    repaired: list[Part] = []
    # Partitions first: the indexes of a missing one are missing with it.
    while parts := [part for part in missing(connection) if part not in repaired]:
        part = next((part for part in parts if part.kind == "partition"), parts[0])
        _make(connection, part)
        repaired.append(part)
    return repaired


def _make(connection: Connection, part: Part) -> None:
    ddl = {
        ("partition", "default"): default_partition_again(part.table),
        ("index", PROCESSED): INDEX_PROCESSED,
        ("trigger", TRIGGER): NOTIFY,
        ("trigger", GUARD): GUARD_INBOX,
        ("trigger", ANSWERED): ANSWER_REQUESTS,
    }.get((part.kind, part.name))
    if ddl is not None:
        connection.execute(DDL(ddl))  # type: ignore[no-untyped-call]
    else:
        next(index for index in metadata.tables[part.table].indexes if index.name == part.name).create(connection)


def _expected(*, divided: bool) -> Iterator[Part]:
    for table in metadata.sorted_tables:
        yield Part("table", table.name, "")
        yield from (Part("column", table.name, column.name) for column in table.columns)
        yield from (Part("index", table.name, str(index.name)) for index in table.indexes)
    if divided:
        yield from (Part("partition", table.name, "default") for table in (inbox, published))
        yield Part("index", f"{inbox.name}_default", PROCESSED)
        yield Part("trigger", outbox.name, TRIGGER)
        yield Part("trigger", inbox.name, GUARD)
        yield Part("trigger", idempotency.name, ANSWERED)


_CURE = "run `outboxkit migrate`, or add migrations.upgrade(op, {since}to={to}) to your Alembic history"
NEEDED = tables.SCHEMA_VERSION
"""The version that this code works with; newer ones are accepted."""


def installed(connection: Connection) -> int:
    """The version of the tables that this connection sees; 0 if there are none.

    Raises:
        SchemaError: the version table exists and is empty.
    """
    if not inspect(connection).has_table(tables.schema_version.name):
        return 0
    version = connection.execute(statements.schema.current_version()).scalar_one_or_none()
    if version is None:
        raise SchemaError(
            f"{tables.schema_version.name} is empty, so the version of the tables is unknown. If Alembic's "
            "autogenerate made them from outboxkit.metadata, replace that part of the revision by "
            f"migrations.upgrade(op, to={NEEDED}). Otherwise insert the version that the tables have"
        )
    return version


def check_server(connection: Connection) -> None:
    """Make sure that the database server is new enough. No I/O: a server says its version when a connection opens.

    Raises:
        ConfigurationError: it is older than PostgreSQL 13.
    """
    version = connection.dialect.server_version_info or ()
    if is_server(connection.dialect.name) and version < (OLDEST,):
        name = ".".join(map(str, version)) or "of an unknown version"
        raise ConfigurationError(
            f"the database server is PostgreSQL {name}; {OLDEST} to {NEWEST} and newer ones are accepted: upgrade the "
            "server, or name another one in the database URL"
        )


def check(connection: Connection) -> None:
    """Make sure that the tables exist, are new enough, and lack no part that every statement needs.

    Newer tables are accepted: in a rollout they are migrated first, and old processes go on until they are replaced.

    Raises:
        SchemaError: they are missing or old, or a part of them is missing; the text says what to run.
        ConfigurationError: the server is older than PostgreSQL 13.
    """
    _check(connection, VITAL_PARTS)


def check_readable(connection: Connection) -> None:
    """`check` for a command that only reads: a default partition may be missing."""
    _check(connection, READ_PARTS)


def _check(connection: Connection, kinds: Collection[str]) -> None:
    check_server(connection)
    version = installed(connection)
    if version == 0:
        raise SchemaError(f"the outboxkit tables are missing: {_CURE.format(since='', to=NEEDED)}")
    if version < NEEDED:
        cure = _CURE.format(since=f"since={version}, ", to=NEEDED)
        raise SchemaError(f"the outboxkit tables have version {version}, this code needs {NEEDED}: {cure}")
    if version == NEEDED:
        check_parts(connection, kinds)


async def check_engine(engine: AsyncEngine) -> None:
    """`check` on a connection of its own, for a process's start."""
    async with engine.begin() as connection:
        await connection.run_sync(check)


async def check_worker(engine: AsyncEngine) -> None:
    """`check_engine` and `pooler.check_sessions`, for a worker's start."""
    await check_engine(engine)
    await pooler.check_sessions(engine)


_DENIED = re.compile(r"(?:permission denied for|must be owner of) (?P<kind>\w+) \"?(?P<name>\w+)")
_OWNER = "must be owner"
_OF_WORKERS = (inbox.name, attempt.name)
"""Tables that a consumer writes for itself. A right on another one may be missing for one handler alone."""


def cure_of(error: DBAPIError) -> str | None:
    """The end of a sentence about an error that names a missing table, column or right; None for another one."""
    if sqlstate_of(error) == NO_RIGHT:
        return _cure_of_right(error)
    if "outboxkit_" not in str(error.orig) or not (is_missing_table(error) or is_missing_column(error)):
        return None
    if is_missing_table(error):
        return (
            "refused, as a table of outboxkit is missing: run `outboxkit migrate`, which creates the tables or names "
            "what is gone, or `outboxkit run`, which creates them. If they are in a schema of their own, the URL must "
            "name it"
        )
    return "refused, as its tables are older than this outboxkit: run `outboxkit migrate`, which upgrades them"


@contextmanager
def explained() -> Iterator[None]:
    """Add to an error that names a missing table, column or right what cures it."""
    try:
        yield
    except DBAPIError as error:
        if (cure := cure_of(error)) is not None:
            error.add_note(f"outboxkit: the database {cure}")
        raise


def _cure_of_right(error: DBAPIError) -> str | None:
    denied = _DENIED.search(str(error.orig))
    if denied is None or not (denied["kind"] == "schema" or denied["name"].startswith("outboxkit_")):
        return None
    role = next((note for note in getattr(error, "__notes__", ()) if note.startswith(ROLE)), "")
    verb = (error.statement or "").split(maxsplit=1)[0].upper() if error.statement else ""
    right = verb if verb in ("SELECT", "INSERT", "UPDATE", "DELETE") else "SELECT"
    if right == "SELECT" and " FOR UPDATE" in (error.statement or ""):
        right = "SELECT, UPDATE"
    if denied["kind"] == "schema":
        right = f"{'CREATE' if verb == 'CREATE' else 'USAGE'} ON SCHEMA {denied['name']}"
    else:
        right = f"{right} ON {denied['name']}"
    to = role.removeprefix(ROLE) or "this role"
    cure = "run it as that owner" if _OWNER in str(error.orig) else f"let their owner GRANT {right} TO {to}"
    return (
        f"refused, as {role or 'this role'} lacks a right on outboxkit's tables: {cure}. "
        "docs/how-to/grant-least-privileges.md has the rights of each work; `outboxkit doctor` names what is missing"
    )


async def blame(engine: AsyncEngine, error: BaseException | None) -> None:
    """Find whether this error comes from tables that were dropped, changed or replaced, or from a pooler.

    Raises:
        SchemaError, ConfigurationError: as `check_worker`, or a right on the inbox is missing. Nothing if all is as it
            should be, or if the database cannot be read.
    """
    await pooler.blame_pooler(engine, error)
    if isinstance(error, DBAPIError) and any(f" {name}" in str(error.orig) for name in _OF_WORKERS):
        cure = cure_of(error) if sqlstate_of(error) == NO_RIGHT else None
        if cure is not None:
            raise SchemaError(f"the database {cure}: {first_line(error)}") from error
    if error is None or not (is_missing_table(error) or is_missing_column(error) or is_refused_row(error)):
        return
    with suppress(DBAPIError):
        await check_engine(engine)


@asynccontextmanager
async def blamed(engine: AsyncEngine) -> AsyncIterator[None]:
    """A context for a worker's run: an error that comes from its tables leaves as the `SchemaError` of `check`."""
    try:
        yield
    except DBAPIError as error:
        await blame(engine, error)
        raise
