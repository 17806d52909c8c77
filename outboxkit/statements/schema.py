"""The version of the tables, and a sign of life."""

from sqlalchemy import Select, literal_column, select

from outboxkit.tables import schema_version


def current_version() -> Select[int]:
    """The version of the tables: one row. Locks: none."""
    return select(schema_version.c.version)


def alive() -> Select[int]:
    """Ask the database for a sign of life."""
    return select(literal_column("1", type_=schema_version.c.version.type))
