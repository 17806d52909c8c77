"""What PostgreSQL itself knows: who is connected, and what keeps vacuum from its work. None of it reads query texts."""

from sqlalchemy import TextClause, text

_SESSIONS = text("""
SELECT pid, application_name AS name, backend_start AS since, state, host(client_addr) AS address
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND pid <> pg_backend_pid()
ORDER BY application_name, backend_start, pid
""")

_OLDEST_TRANSACTION = text("""
SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS kind, pid, application_name AS name,
    state, xact_start AS since, query_start, greatest(age(backend_xmin), age(backend_xid)) AS behind
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND (datname = current_database() OR datname IS NULL)
    AND backend_type <> 'autovacuum worker'
    AND pid <> pg_backend_pid()
    AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
UNION ALL
SELECT 'slot', active_pid, CAST(slot_name AS text), NULL, NULL, NULL, age(xmin)
FROM pg_replication_slots
WHERE xmin IS NOT NULL
UNION ALL
SELECT 'prepared', NULL, gid, NULL, prepared, NULL, age(transaction)
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY behind DESC, since
LIMIT 1
""")

_VACUUM = text("""
SELECT n_dead_tup AS dead_rows, greatest(last_vacuum, last_autovacuum) AS last_vacuum
FROM pg_stat_user_tables
WHERE relid = to_regclass('outboxkit_outbox')
""")


def sessions() -> TextClause:
    """The sessions of outboxkit's own processes in this database, but this one. PostgreSQL only.

    Where the role may not see another's sessions their times, states and addresses are null. Index: none, it reads
    pg_stat_activity. Locks: none.
    """
    return _SESSIONS


def oldest_transaction() -> TextClause:
    """What holds the oldest transaction id that vacuum must spare in this database: one row, or none. PostgreSQL only.

    A session, a standby's feedback, a replication slot or a prepared transaction; vacuum itself does not count.
    Index: none, it reads catalogs. Locks: none.
    """
    return _OLDEST_TRANSACTION


def vacuum() -> TextClause:
    """How many rows of the outbox are dead and not yet removed, and when they last were. PostgreSQL only.

    Index: none, it reads statistics. Locks: none.
    """
    return _VACUUM
