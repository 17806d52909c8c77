"""Statements of `outboxkit doctor` alone: what waits for the broker, what should be gone, and what catalogs tell."""

from typing import Any

from sqlalchemy import Integer, Select, String, TextClause, bindparam, column, func, literal_column, select, table, text

from outboxkit.statements.dialects import unplaced_rows
from outboxkit.tables import UtcDateTime, dead_letter, effect, idempotency, inbox, outbox

_LIMIT = bindparam("limit", type_=Integer)


def oldest_by_route() -> Select[Any]:
    """The routing keys of the `limit` rows with the lowest positions, and how many rows have each.

    Of a destination, and without rows that need no queue or are for one alone. Parameters: destination, limit. Index:
    the primary key. Locks: none.
    """
    key = func.coalesce(outbox.c.topic, outbox.c.type).label("key")
    columns = (key, outbox.c.destination, outbox.c.queue, outbox.c.discard_unroutable)
    first = select(*columns).order_by(outbox.c.position).limit(_LIMIT).subquery("first")
    is_ours = first.c.destination == bindparam("destination", type_=String)
    routed = (is_ours, first.c.queue.is_(None), ~first.c.discard_unroutable)
    return select(first.c.key, func.count().label("rows")).where(*routed).group_by(first.c.key)


def oldest_unplaced(dialect: str) -> Select[Any]:
    """When the oldest inbox row that is in no day's partition was processed.

    Index: outboxkit_inbox_processed on PostgreSQL; none on SQLite. Locks: none.
    """
    rows = table(unplaced_rows(dialect, inbox), column("processed_at", UtcDateTime))
    return select(func.min(rows.c.processed_at))


def oldest_request() -> Select[Any]:
    """When the first idempotency key expires, or expired. Index: outboxkit_idempotency_expires. Locks: none."""
    return select(func.min(idempotency.c.expires_at))


def oldest_effect() -> Select[Any]:
    """When the oldest effect was last used, of those that need no handled message. Index: outboxkit_effect_used.

    Locks: none.
    """
    return select(func.min(effect.c.used_at)).where(effect.c.message_id.is_(None))


def first_dead_letter() -> Select[Any]:
    """When the dead letter with the lowest id died, and whether it parks a key. Index: the primary key. Locks: none."""
    return select(dead_letter.c.dead_at, dead_letter.c.parked).order_by(dead_letter.c.id).limit(literal_column("1"))


def oldest_dead() -> Select[Any]:
    """The open dead letter that died first. Index: outboxkit_dead_letter_open. Locks: none."""
    columns = (dead_letter.c.id, dead_letter.c.dead_at, dead_letter.c.type, dead_letter.c.error)
    is_open = dead_letter.c.resolution.is_(None)
    return select(*columns).where(is_open).order_by(dead_letter.c.dead_at, dead_letter.c.id).limit(literal_column("1"))


_GROWING = ("outbox", "inbox", "dead_letter", "published", "idempotency", "effect", "attempt")
_ROOTS = ", ".join(f"(to_regclass('outboxkit_{name}'))" for name in _GROWING)
_OURS = (
    f"SELECT root AS oid FROM (VALUES {_ROOTS}) AS roots (root) UNION ALL "  # noqa: S608 - our own names
    f"SELECT inhrelid FROM pg_inherits JOIN (VALUES {_ROOTS}) AS roots (root) ON inhparent = root"
)
"""The tables that grow, with their partitions. pg_partition_tree would lock these."""


def homes() -> TextClause:
    """The schemas of this database that have an outbox.

    PostgreSQL only. Index: the catalogue's own. Locks: none.
    """
    return text(
        "SELECT nspname AS schema FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE relname = 'outboxkit_outbox' AND relkind IN ('r', 'p') ORDER BY nspname"
    )


def dead_rows() -> TextClause:
    """The tables with their dead and live rows, vacuums, and whether autovacuum leaves them alone.

    PostgreSQL only. Index: none, it reads catalogs and statistics. Locks: none.
    """
    return text(
        f"WITH ours AS ({_OURS}) "  # noqa: S608 - our own names
        "SELECT CAST(relid AS regclass)::text AS name, n_dead_tup AS dead, n_live_tup AS live, "
        "greatest(last_vacuum, last_autovacuum) AS last_vacuum, "
        "coalesce('autovacuum_enabled=false' = ANY (reloptions) OR 'autovacuum_enabled=off' = ANY (reloptions), false) "
        "AS is_left_alone, relpersistence = 'u' AS is_unlogged "
        "FROM ours JOIN pg_stat_user_tables ON relid = ours.oid JOIN pg_class ON pg_class.oid = relid "
        "ORDER BY n_dead_tup DESC, relid"
    )


def slots() -> TextClause:
    """Replication slots of the server that nobody reads from, and the write-ahead log that each keeps, in bytes.

    PostgreSQL only. Index: none. Locks: none.
    """
    return text(
        "SELECT slot_name AS name, pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() "
        "ELSE pg_current_wal_lsn() END, restart_lsn) AS bytes FROM pg_replication_slots "
        "WHERE NOT active AND restart_lsn IS NOT NULL ORDER BY slot_name"
    )


def table_locks() -> TextClause:
    """Sessions with a lock on one of the tables that keeps others from writing it, and since when.

    PostgreSQL only. Index: none, it reads the server's locks. Locks: none.
    """
    return text(
        f"WITH ours AS ({_OURS}) "  # noqa: S608 - our own names
        "SELECT pid, CAST(relation AS regclass)::text AS name, mode, application_name, state, xact_start AS since, "
        "(SELECT count(*) FROM pg_locks AS other WHERE other.relation = pg_locks.relation AND NOT other.granted "
        "AND other.database = pg_locks.database) AS waiting "
        "FROM pg_locks JOIN ours ON ours.oid = relation LEFT JOIN pg_stat_activity USING (pid) "
        "WHERE granted AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') "
        "AND pid <> pg_backend_pid() ORDER BY xact_start, pid, name"
    )
