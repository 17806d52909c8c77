"""Statements about outboxkit's tables as PostgreSQL keeps them, for `outboxkit doctor`. They read catalogs alone."""

from sqlalchemy import TextClause, text

_GROWING = ("outbox", "inbox", "dead_letter", "published", "idempotency", "effect", "attempt")
_ROOTS = ", ".join(f"(to_regclass('outboxkit_{name}'))" for name in _GROWING)
_OURS = (
    f"SELECT coalesce(relid, root) AS oid FROM (VALUES {_ROOTS}) AS roots (root) "  # noqa: S608 - ours
    "LEFT JOIN LATERAL pg_partition_tree(root) ON true"
)
"""The tables that grow, with their partitions."""


def homes() -> TextClause:
    """The schemas of this database that have an outbox, and whether it is the one that this session uses.

    PostgreSQL only. Index: the catalogue's own. Locks: none.
    """
    return text(
        "SELECT nspname AS schema, coalesce(pg_class.oid = to_regclass('outboxkit_outbox'), false) AS is_used "
        "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
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
        "AS is_left_alone, relpersistence = 'u' AS is_unlogged, greatest(age(relfrozenxid), 0) AS age "
        "FROM ours JOIN pg_stat_user_tables ON relid = ours.oid JOIN pg_class ON pg_class.oid = relid "
        "ORDER BY n_dead_tup DESC, relid"
    )


def invalid_indexes() -> TextClause:
    """Indexes of the tables that PostgreSQL does not use: their creation has failed.

    PostgreSQL only. Index: the catalogue's own. Locks: none.
    """
    return text(
        f"WITH ours AS ({_OURS}) "  # noqa: S608 - our own names
        "SELECT CAST(indexrelid AS regclass)::text AS name, CAST(indrelid AS regclass)::text AS table "
        "FROM ours JOIN pg_index ON indrelid = ours.oid WHERE NOT indisvalid OR NOT indisready ORDER BY 1"
    )


def ids_left() -> TextClause:
    """The identity columns: their table, the last number and the highest. PostgreSQL only.

    The last one is null if none was used, or if this role may not see it. Index: the catalogue's own. Locks: none.
    """
    return text(
        "SELECT CAST(parent.oid AS regclass)::text AS name, last_value AS last, max_value AS most "
        "FROM (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_dead_letter'))) AS ours (oid) "
        "JOIN pg_class AS parent ON parent.oid = ours.oid "
        "JOIN pg_depend ON refobjid = parent.oid AND deptype = 'i' AND classid = CAST('pg_class' AS regclass) "
        "JOIN pg_class AS child ON child.oid = objid AND child.relkind = 'S' "
        "JOIN pg_namespace ON pg_namespace.oid = child.relnamespace "
        "JOIN pg_sequences ON schemaname = nspname AND sequencename = child.relname ORDER BY 1"
    )


def oldest_ids() -> TextClause:
    """The ages of this database's oldest transaction id and multixact id: one row. PostgreSQL only.

    Index: the catalogue's own. Locks: none.
    """
    return text(
        "SELECT age(datfrozenxid) AS transactions, mxid_age(datminmxid) AS multixacts, "
        "CAST(current_setting('autovacuum_freeze_max_age') AS bigint) AS freeze_after "
        "FROM pg_database WHERE datname = current_database()"
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
