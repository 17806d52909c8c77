"""The version of the tables, and the parts of them that exist."""

from sqlalchemy import (
    Select,
    TextClause,
    select,
    text,
)

from outboxkit.statements.dialects import has_one_writer
from outboxkit.tables import inbox, metadata, published, schema_version

_OURS = (*metadata.tables, f"{inbox.name}_default", f"{published.name}_default")


def current_version() -> Select[int]:
    """The version of the tables: one row. Locks: none."""
    return select(schema_version.c.version)


def existing_parts(dialect: str) -> TextClause:
    """The parts of outboxkit's tables that exist: rows of a kind, a table's name and the part's own.

    Kinds: table, column and index; on PostgreSQL also partition (the default one) and trigger. Index: the catalogue's
    own. Locks: none.
    """
    if has_one_writer(dialect):
        names = ", ".join(f"'{name}'" for name in metadata.tables)
        return text(
            f"SELECT 'table', name, '' FROM sqlite_master WHERE name IN ({names}) UNION ALL "  # noqa: S608 - our own names
            f"SELECT 'column', m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c "
            f"WHERE m.name IN ({names}) UNION ALL "
            f"SELECT 'index', tbl_name, name FROM sqlite_master WHERE type = 'index' AND tbl_name IN ({names})"
        )
    names = ", ".join(f"to_regclass('{name}')" for name in _OURS)
    return text(
        f"WITH ours AS (SELECT oid, relname FROM pg_class WHERE oid IN ({names})) "  # noqa: S608 - our own names
        "SELECT 'table', relname, '' FROM ours UNION ALL "
        "SELECT 'column', relname, attname FROM ours JOIN pg_attribute ON attrelid = oid "
        "WHERE attnum > 0 AND NOT attisdropped UNION ALL "
        "SELECT 'index', ours.relname, made.relname FROM ours JOIN pg_index ON indrelid = ours.oid "
        "JOIN pg_class made ON made.oid = indexrelid UNION ALL "
        "SELECT 'partition', ours.relname, 'default' FROM ours JOIN pg_partitioned_table ON partrelid = ours.oid "
        "WHERE partdefid <> 0 UNION ALL "
        "SELECT 'trigger', relname, tgname FROM ours JOIN pg_trigger ON tgrelid = ours.oid WHERE NOT tgisinternal"
    )
