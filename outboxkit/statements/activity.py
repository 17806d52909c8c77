"""The installation as the database knows it: the schema's version, handlers by queue, and recent activity."""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Delete,
    Insert,
    Select,
    TextClause,
    Update,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    text,
    update,
)

from outboxkit.statements.dialects import has_one_writer, insert_into
from outboxkit.tables import handler, inbox, metadata, published, schema_version

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


SEEN = timedelta(days=1)
"""The time for which other queues know a queue's handler after it was seen; a queue may have been renamed."""
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_NOW = func.current_timestamp()
_NOTED = ("function", "types", "retention")
_KNOWN = tuple(
    handler.c[name] for name in ("queue", "handler", "function", "types", "first_seen", "last_seen", "retention")
)


@cache
def register_handlers(dialect: str) -> Insert:
    """Note that a queue's consumer has a handler, now.

    Parameters: handler, queue, function, types, retention; or a list of them. It must be in the order of the names, so
    that consumers that write the same rows do not deadlock. Index: the primary key. Locks: the row.
    """
    row = {name: bindparam(name, type_=handler.c[name].type) for name in ("handler", "queue", *_NOTED)}
    upsert: Insert = (
        insert_into(dialect, handler)
        .values(row | {"last_seen": _NOW})
        .on_conflict_do_update(
            index_elements=list(handler.primary_key),
            set_={name: row[name] for name in _NOTED} | {"last_seen": _NOW},
        )
    )
    return upsert


def retire_handlers(names: list[str]) -> Update:
    """Say that a queue's consumer is no longer seen with any handler but these.

    Parameters: of_queue. Index: none, the table has a row for each queue and handler. Locks: the rows.
    """
    gone = (handler.c.queue == bindparam("of_queue"), handler.c.handler.not_in(names), handler.c.last_seen > NEVER)
    return update(handler).where(*gone).values(last_seen=NEVER)


def of_all_handlers() -> Select[Any]:
    """The handlers of all queues.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    return select(*_KNOWN).order_by(handler.c.queue, handler.c.handler)


def of_all_retentions(seen_since: datetime) -> Select[Any]:
    """The queues whose consumers were seen lately, and the retention in seconds that each counts on, if it is known.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    known = (handler.c.last_seen >= seen_since, handler.c.retention.is_not(None))
    longest = func.max(handler.c.retention).label("retention")
    return select(handler.c.queue, longest).where(*known).group_by(handler.c.queue).order_by(handler.c.queue)


def of_several_queues(seen_since: datetime) -> Select[Any]:
    """The handlers of names that more than one queue's consumers have.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    seen = handler.c.last_seen >= seen_since
    several = (
        select(handler.c.handler).where(seen).group_by(handler.c.handler).having(func.count() > literal_column("1"))
    )
    return select(*_KNOWN).where(seen, handler.c.handler.in_(several)).order_by(handler.c.handler, handler.c.queue)


def has_handled() -> Select[bool]:
    """Whether the inbox has a message of a handler.

    Parameters: handler. Index: the primary key, of each partition until the first row. Locks: none.
    """
    return select(exists().where(inbox.c.handler == bindparam("handler")))


def forget_handlers(names: list[str]) -> Delete:
    """Forget these handlers of a queue.

    Parameters: of_queue. Index: the primary key. Locks: the rows that it deletes.
    """
    return delete(handler).where(handler.c.queue == bindparam("of_queue"), handler.c.handler.in_(names))


def of_all_queues() -> Select[Any]:
    """The queues whose consumers have registered handlers, and when each was last seen.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    last = func.max(handler.c.last_seen).label("last_seen")
    return select(handler.c.queue, last).group_by(handler.c.queue).order_by(handler.c.queue)


def prune_handlers(before: datetime) -> Delete:
    """Forget handlers that no consumer was seen with since before this moment.

    Index: none, the table has few rows. Locks: the rows that it deletes.
    """
    return delete(handler).where(handler.c.last_seen < before)


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
