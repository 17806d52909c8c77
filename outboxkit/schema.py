"""The version of the tables in a database, and the check that this code can work with it."""

from sqlalchemy import Connection, inspect
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements, structure, tables
from outboxkit.errors import SchemaError

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
    version = connection.execute(statements.activity.current_version()).scalar_one_or_none()
    if version is None:
        raise SchemaError(
            f"{tables.schema_version.name} is empty, so the version of the tables is unknown. If Alembic's "
            "autogenerate made them from outboxkit.metadata, replace that part of the revision by "
            f"migrations.upgrade(op, to={NEEDED}). Otherwise insert the version that the tables have"
        )
    return version


def check(connection: Connection) -> None:
    """Make sure that the tables exist, are new enough, and lack no part that every statement needs.

    Newer tables are accepted: in a rollout they are migrated first, and old processes go on until they are replaced.

    Raises:
        SchemaError: they are missing or old, or a part of them is missing; the text says what to run.
    """
    version = installed(connection)
    if version == 0:
        raise SchemaError(f"the outboxkit tables are missing: {_CURE.format(since='', to=NEEDED)}")
    if version < NEEDED:
        cure = _CURE.format(since=f"since={version}, ", to=NEEDED)
        raise SchemaError(f"the outboxkit tables have version {version}, this code needs {NEEDED}: {cure}")
    if version == NEEDED:
        structure.check_parts(connection, structure.NEEDED)


async def check_engine(engine: AsyncEngine) -> None:
    """`check` on a connection of its own, for a worker's start.

    Raises:
        SchemaError: as `check`.
    """
    async with engine.begin() as connection:
        await connection.run_sync(check)
