"""DDL for PostgreSQL alone: default partitions, and three triggers."""

from importlib.resources import files

TRIGGER = "outboxkit_notify"
"""The trigger's name, and its function's."""
GUARD = "outboxkit_guard"
"""The name of the trigger that keeps handlers from committing, and its function's."""
ANSWERED = "outboxkit_answered"
"""The name of the trigger that keeps endpoints from committing before the answer, and its function's."""
PROCESSED = "outboxkit_inbox_processed"
"""The index of the inbox's default partition."""
INDEX_PROCESSED = f"CREATE INDEX {PROCESSED} ON outboxkit_inbox_default (processed_at)"


def default_partition(table: str) -> str:
    """Make the partition of rows that fit into none."""
    return f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT"


def default_partition_again(table: str) -> str:
    """Make it again, or attach the one that was detached, and give it to the table's owner. Locks the table.

    It is the one in the table's own schema: further on in the search path there may be another copy of the tables.
    """
    return f"""
DO $make$
DECLARE
    parent regclass := to_regclass('{table}');
    child text := (SELECT quote_ident(nspname) || '.{table}_default'
        FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = parent);
BEGIN
    IF to_regclass(child) IS NULL THEN
        EXECUTE 'CREATE TABLE ' || child || ' PARTITION OF {table} DEFAULT';
    ELSE
        EXECUTE 'ALTER TABLE {table} ATTACH PARTITION ' || child || ' DEFAULT';
    END IF;
    EXECUTE 'ALTER TABLE ' || child || ' OWNER TO '
        || (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = parent);
END $make$
"""  # noqa: S608 - our own names


NOTIFY = (files("outboxkit") / "tables" / "notify_v1.sql").read_text()
"""The trigger: an insert notifies the channel `outboxkit_<oid of the table>` while a listener is registered.

It must cost the writer nothing, least of all the transaction. The writer's rights and search path do not matter, and no
error leaves the function. It is silent if a NOTIFY could make the COMMIT or a PREPARE TRANSACTION fail. Every name and
operator is qualified, which is as safe as a search path of its own and costs nothing at each call. The index on `until`
leads past dead versions of listeners, however long vacuum has been held back.
"""

GUARD_INBOX = (files("outboxkit") / "tables" / "guard_v1.sql").read_text()
"""The trigger: a COMMIT fails until `outboxkit.lifted` is set, in whatever words it is written.

It fires at the COMMIT, since it is deferred. Its WHEN is judged right after the insert of a row, and is true only for
the statement of a handler's run, which sets `outboxkit.guard`. So neither setting can be taken away to commit.
"""

ANSWER_REQUESTS = (files("outboxkit") / "tables" / "answered_v1.sql").read_text()
"""The trigger: a COMMIT fails as long as a request without a lease has no answer, in whatever words it is written.

It fires at the COMMIT, for a row that was taken without an answer, and reads it again by its primary key.
"""
