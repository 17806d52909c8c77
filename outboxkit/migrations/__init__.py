"""Versioned steps that create and upgrade the tables, for `outboxkit migrate` and for a user's own Alembic history.

In a revision of your own, one line is enough, also for `alembic upgrade --sql`:

    from alembic import op
    from outboxkit import migrations

    def upgrade() -> None:
        migrations.upgrade(op, to=5)

A later revision says `migrations.upgrade(op, since=5, to=6)`.
"""

from types import ModuleType
from typing import IO, Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, func, inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements, tables
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.migrations import partitions as partitions  # tells Alembic's autogenerate of them
from outboxkit.migrations import v0001, v0002, v0003, v0004, v0005

STEPS: dict[int, ModuleType] = {1: v0001, 2: v0002, 3: v0003, 4: v0004, 5: v0005}
LATEST = max(STEPS)

_VERSION = tables.schema_version
_LOCK = 0x6F75_7462_6F78  # "outbox": every `migrate` of one database takes this lock
_CURE = "run `outboxkit migrate`, or add migrations.upgrade(op, {since}to={to}) to your Alembic history"


def upgrade(op: Any, *, to: int, since: int = 0) -> None:
    """Run the steps after `since` up to and including `to` with these Alembic operations, in the caller's transaction.

    Args:
        op: `alembic.op` in a revision, or an `alembic.operations.Operations`.
        to: the version to reach.
        since: the version that the tables have; 0 is none at all.

    Raises:
        ConfigurationError: there are no such steps.
    """
    for version in _between(since, to):
        STEPS[version].upgrade(op)
        op.execute(_VERSION.insert().values(version=1) if version == 1 else _VERSION.update().values(version=version))


def downgrade(op: Any, *, to: int, since: int) -> None:
    """Undo the steps after `to`, newest first, beginning with `since`. Undoing the first drops every message.

    Raises:
        ConfigurationError: there are no such steps.
    """
    for version in reversed(_between(to, since)):
        if version > 1:
            op.execute(_VERSION.update().values(version=version - 1))
        STEPS[version].downgrade(op)


def migrate(connection: Connection) -> tuple[int, int]:
    """Bring the tables to the newest version, in the connection's transaction; returns the versions before and after.

    Any number of processes may call it at once: one works, the others wait and then find nothing to do.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    found = installed(connection)
    if found < LATEST:
        upgrade(Operations(MigrationContext.configure(connection)), since=found, to=LATEST)
    return found, max(found, LATEST)


def write_sql(dialect_name: str, output: IO[str]) -> None:
    """Write the DDL of all steps for this dialect (`postgresql` or `sqlite`), without a database."""
    options = {"as_sql": True, "output_buffer": output, "literal_binds": True}
    context = MigrationContext.configure(dialect_name=dialect_name, opts=options)
    with context.begin_transaction():
        upgrade(Operations(context), to=LATEST)


def installed(connection: Connection) -> int:
    """The version of the tables that this connection sees; 0 where there are none.

    Raises:
        SchemaError: the version table is there and says nothing.
    """
    if not inspect(connection).has_table(tables.schema_version.name):
        return 0
    version = connection.execute(statements.schema.current_version()).scalar_one_or_none()
    if version is None:
        raise SchemaError(
            f"{tables.schema_version.name} is empty, so the version of the tables is unknown. If Alembic's "
            "autogenerate made them from outboxkit.metadata, replace that part of the revision by "
            f"migrations.upgrade(op, to={LATEST}); otherwise insert the version that the tables have"
        )
    return version


def check(connection: Connection) -> None:
    """Make sure that the tables are there and new enough.

    Newer tables are accepted: during a rollout they are migrated first, and old processes go on until replaced.

    Raises:
        SchemaError: they are missing or old; the text says what to run.
    """
    found = installed(connection)
    if found == 0:
        raise SchemaError(f"the outboxkit tables are missing: {_CURE.format(since='', to=LATEST)}")
    if found < LATEST:
        cure = _CURE.format(since=f"since={found}, ", to=LATEST)
        raise SchemaError(f"the outboxkit tables have version {found}, this code needs {LATEST}: {cure}")


async def check_engine(engine: AsyncEngine) -> None:
    """`check` on a connection of its own, for a worker's start.

    Raises:
        SchemaError: as `check`.
    """
    async with engine.begin() as connection:
        await connection.run_sync(check)


def _between(since: int, to: int) -> list[int]:
    if not 0 <= since <= to <= LATEST:
        raise ConfigurationError(
            f"there are no steps from version {since} to {to}; versions 0 to {LATEST} exist, upwards"
        )
    return list(range(since + 1, to + 1))
