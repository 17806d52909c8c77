"""The version of the tables."""

from sqlalchemy import Select, select

from outboxkit.tables import schema_version


def current_version() -> Select[int]:
    """The version of the tables: one row. Locks: none."""
    return select(schema_version.c.version)
