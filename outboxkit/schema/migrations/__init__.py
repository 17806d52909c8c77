"""Versioned steps that create and upgrade the tables, for `outboxkit migrate` and for a user's own Alembic history.

In a revision of your own, one line is enough, also for `alembic upgrade --sql`:

    from alembic import op
    from outboxkit.schema import migrations

    def upgrade() -> None:
        migrations.upgrade(op, to=1)

A later revision says `migrations.upgrade(op, since=1, to=2)`.
"""

from types import ModuleType
from typing import IO, Any

from sqlalchemy import Connection, func, select

from outboxkit import schema, tables
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.schema.migrations import v0001

with needs_extra(__name__):
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

__all__ = [
    "LATEST",
    "STEPS",
    "downgrade",
    "migrate",
    "repair",
    "upgrade",
    "write_sql",
]

STEPS: dict[int, ModuleType] = {1: v0001}
LATEST = max(STEPS)

_VERSION = tables.schema_version
_LOCK = 0x6F75_7462_6F78  # "outbox": every `migrate` of one database takes this lock


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
    """Undo the steps after `to`, newest first, beginning with `since`. Undoing the first drops every message."""
    for version in reversed(_between(to, since)):
        if version > 1:
            op.execute(_VERSION.update().values(version=version - 1))
        STEPS[version].downgrade(op)


def migrate(connection: Connection) -> tuple[int, int]:
    """Bring the tables to the newest version, in the connection's transaction; returns the versions before and after.

    Any number of processes may call it at once: one works, the others wait and then find nothing to do.

    Raises:
        ConfigurationError: the server is older than PostgreSQL 13.
    """
    schema.check_server(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    version = schema.installed(connection)
    if version < LATEST:
        upgrade(Operations(MigrationContext.configure(connection)), since=version, to=LATEST)
    return version, max(version, LATEST)


def repair(connection: Connection) -> list[str]:
    """Make parts of the tables again that something has dropped, in the connection's transaction; returns their names.

    A default partition, an index and the trigger can be made again; newer tables are left as they are.

    Raises:
        SchemaError: a table or a column is missing, which only a backup can give back.
    """
    return [str(part) for part in schema.repair_parts(connection)] if schema.installed(connection) == LATEST else []


def write_sql(dialect_name: str, output: IO[str]) -> None:
    """Write the DDL of all steps for this dialect (`postgresql` or `sqlite`), without a database."""
    options = {"as_sql": True, "output_buffer": output, "literal_binds": True}
    context = MigrationContext.configure(dialect_name=dialect_name, opts=options)
    with context.begin_transaction():
        upgrade(Operations(context), to=LATEST)


def _between(since: int, to: int) -> list[int]:
    if not 0 <= since <= to <= LATEST:
        raise ConfigurationError(
            f"there are no steps from version {since} to {to}; versions 0 to {LATEST} exist, upwards"
        )
    return list(range(since + 1, to + 1))
