"""Activity in the database: sessions, the locks that they wait for, and what vacuum has to spare."""

from sqlalchemy import (
    TextClause,
    text,
)


def sessions() -> TextClause:
    """The sessions of outboxkit's own processes in this database, but this one. PostgreSQL only.

    If the role may not see another's sessions, their times, states and addresses are null. Index: none, it reads
    pg_stat_activity. Locks: none.
    """
    return text("""
SELECT pid, application_name AS name, backend_start AS since, state, host(client_addr) AS address,
    xact_start AS open_since
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND pid <> pg_backend_pid()
ORDER BY application_name, backend_start, pid
""")


def lock_waits() -> TextClause:
    """The sessions of outboxkit that wait for a lock, those that they wait for, and so on. PostgreSQL only.

    `blockers` has the process ids for which a session waits; 0 stands for a prepared transaction. Index: none, it reads
    pg_stat_activity. Locks: none, but it asks the server's lock table once for each of these sessions.
    """
    return text("""
WITH RECURSIVE waiting (pid) AS (
    SELECT pid
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND wait_event_type = 'Lock'
        AND pid <> pg_backend_pid()
    UNION
    SELECT unnest(pg_blocking_pids(pid)) FROM waiting
)
SELECT waiting.pid, pg_blocking_pids(waiting.pid) AS blockers, activity.pid AS backend, application_name AS name,
    CAST(usename AS text) AS role, host(client_addr) AS address, state, query_start, xact_start AS since
FROM waiting LEFT JOIN pg_stat_activity AS activity ON activity.pid = waiting.pid
ORDER BY waiting.pid
""")


def oldest_transactions() -> TextClause:
    """The ten holders of the oldest transaction ids that vacuum must spare in this database, the oldest first.

    A session, a standby's feedback, a replication slot or a prepared transaction; vacuum itself does not count.
    PostgreSQL only. Index: none, it reads catalogs. Locks: none.
    """
    return text("""
SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS kind, pid, application_name AS name,
    state, xact_start AS since, query_start, greatest(age(backend_xmin), age(backend_xid)) AS behind,
    CAST(usename AS text) AS role, host(client_addr) AS address
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND (datname = current_database() OR datname IS NULL)
    AND backend_type <> 'autovacuum worker'
    AND pid <> pg_backend_pid()
    AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
UNION ALL
SELECT 'slot', active_pid, CAST(slot_name AS text), NULL, NULL, NULL, age(xmin), NULL, NULL
FROM pg_replication_slots
WHERE xmin IS NOT NULL
UNION ALL
SELECT 'prepared', NULL, gid, NULL, prepared, NULL, age(transaction), CAST(owner AS text), NULL
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY behind DESC, since
LIMIT 10
""")


def vacuum() -> TextClause:
    """The number of dead rows that the outbox still has, and the time of its last vacuum. PostgreSQL only.

    Index: none, it reads statistics. Locks: none.
    """
    return text("""
SELECT n_dead_tup AS dead_rows, greatest(last_vacuum, last_autovacuum) AS last_vacuum
FROM pg_stat_user_tables
WHERE relid = to_regclass('outboxkit_outbox')
""")
