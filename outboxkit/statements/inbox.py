"""The inbox: recording what has been processed, and forgetting it in time."""

from datetime import datetime

from sqlalchemy import Delete, Insert, delete, false, insert, literal_column, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.tables import inbox


def record_processed(dialect: str, *, handler: str, message_id: str, type_: str) -> ReturningInsert[str]:
    """Claim the right to run `handler` for this message: returns its id the first time, no row for a duplicate.

    The returned row is what tells: SQLAlchemy keeps no row count of an INSERT.

    Index: the primary key. Locks: where another transaction has inserted the same pair and is still open, this one
    waits for it: after its commit nothing is inserted, after its rollback this insert goes on.
    """
    insert_into = sqlite.insert if dialect == "sqlite" else postgresql.insert
    row = {"handler": handler, "message_id": message_id, "type": type_}
    return (
        insert_into(inbox)
        .values(row)
        .on_conflict_do_nothing(index_elements=list(inbox.primary_key))
        .returning(inbox.c.message_id)
    )


def record_nothing() -> Insert:
    """Find out whether the database is there and takes rows: one that is read-only refuses although there is none.

    Index: none. Locks: none that anybody waits for.
    """
    columns = inbox.c.handler, inbox.c.message_id, inbox.c.type
    none = select(*(literal_column("''", type_=column.type) for column in columns)).where(false())
    return insert(inbox).from_select(columns, none, include_defaults=False)


def prune_inbox(before: datetime, limit: int) -> Delete:
    """Forget at most `limit` inbox rows that were processed before this moment.

    Index: none on the time; the scan stops at the limit. Locks: the rows that it deletes.
    """
    old = select(inbox.c.handler, inbox.c.message_id).where(inbox.c.processed_at < before).limit(limit)
    return delete(inbox).where(tuple_(inbox.c.handler, inbox.c.message_id).in_(old))
