"""Every SQL statement that outboxkit runs on its tables, as small named functions.

Plain SQL of each is kept beside the tests (`tests/unit/sql/`). A docstring names the index that the statement relies
on and the locks it takes; a test explains the plans on PostgreSQL.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    Delete,
    Insert,
    Select,
    Update,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.tables import dead_letter, inbox, outbox, schema_version

ClaimedRow = tuple[
    int, str, str, str | None, str | None, bytes, bytes, str | None, str | None, str, str | None, datetime | None, int
]
Claim = Select[*ClaimedRow]

_CLAIMED = (
    outbox.c.position,
    outbox.c.message_id,
    outbox.c.type,
    outbox.c.topic,
    outbox.c.key,
    outbox.c.payload,
    outbox.c.headers,
    outbox.c.correlation_id,
    outbox.c.causation_id,
    outbox.c.content_type,
    outbox.c.content_encoding,
    outbox.c.created_at,
    outbox.c.attempts,
)


def claim_ready(limit: int) -> Claim:
    """The oldest rows that wait for nothing, in position order.

    Index: outboxkit_outbox_ready, walked from its start. Locks: each row FOR UPDATE until the transaction ends;
    rows that another relay has locked are passed over.
    """
    return (
        select(*_CLAIMED)
        .where(outbox.c.due_at.is_(None))
        .order_by(outbox.c.position)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def claim_due(now: datetime, limit: int) -> Claim:
    """Rows whose time has come: retries and delayed messages, the longest due first.

    Index: outboxkit_outbox_due, up to `now`. Locks: as `claim_ready`.
    """
    return (
        select(*_CLAIMED)
        .where(outbox.c.due_at <= now)
        .order_by(outbox.c.due_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def delete_published(positions: Sequence[int]) -> Delete:
    """Forget rows whose messages the broker has confirmed.

    Index: the primary key. Locks: none beyond those that the claim holds.
    """
    return delete(outbox).where(outbox.c.position.in_(positions))


def reschedule() -> Update:
    """Count one failed attempt of a row and set when it is due again; executed with a list of parameters.

    Parameters: at_position, error, due. Index: the primary key. Locks: none beyond those that the claim holds.
    """
    return (
        update(outbox)
        .where(outbox.c.position == bindparam("at_position"))
        .values(attempts=outbox.c.attempts + 1, last_error=bindparam("error"), due_at=bindparam("due"))
    )


def count_due(now: datetime) -> Select[int]:
    """How many committed rows could be published now, whoever holds them.

    Indexes: outboxkit_outbox_ready and outboxkit_outbox_due, counted in full. Locks: none.
    """
    ready = select(func.count()).select_from(outbox).where(outbox.c.due_at.is_(None)).scalar_subquery()
    due = select(func.count()).select_from(outbox).where(outbox.c.due_at <= now).scalar_subquery()
    return select(ready + due)


def count_later(now: datetime) -> Select[int, datetime | None]:
    """How many rows wait for a later time, and the next such time.

    Index: outboxkit_outbox_due, from `now` on. Locks: none.
    """
    return select(func.count(), func.min(outbox.c.due_at)).where(outbox.c.due_at > now)


def pending_by_type() -> Select[str, int, datetime | None, int]:
    """For each message type: rows in the outbox, the oldest one's creation, and how many have failed at least once.

    Reads the whole outbox. Locks: none.
    """
    failed = func.count().filter(outbox.c.attempts > 0)
    return (
        select(outbox.c.type, func.count(), func.min(outbox.c.created_at), failed)
        .group_by(outbox.c.type)
        .order_by(outbox.c.type)
    )


def count_processed() -> Select[str, int]:
    """How many messages each handler has processed, as the inbox remembers it. Reads the whole inbox. Locks: none."""
    return select(inbox.c.handler, func.count()).group_by(inbox.c.handler).order_by(inbox.c.handler)


def count_dead() -> Select[str, str, int]:
    """Dead letters by side and reason. Reads the whole table. Locks: none."""
    by = (dead_letter.c.side, dead_letter.c.reason)
    return select(*by, func.count()).group_by(*by).order_by(*by)


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


def prune_inbox(before: datetime, limit: int) -> Delete:
    """Forget at most `limit` inbox rows that were processed before this moment.

    Index: none on the time; the scan stops at the limit. Locks: the rows that it deletes.
    """
    old = select(inbox.c.handler, inbox.c.message_id).where(inbox.c.processed_at < before).limit(limit)
    return delete(inbox).where(tuple_(inbox.c.handler, inbox.c.message_id).in_(old))


def bury() -> Insert:
    """Keep a message that was given up on; executed with a dict of dead letter columns. Locks: none."""
    return insert(dead_letter)


def current_version() -> Select[int]:
    """The version of the tables: one row. Locks: none."""
    return select(schema_version.c.version)


def alive() -> Select[int]:
    """Ask the database for a sign of life."""
    return select(literal_column("1", type_=schema_version.c.version.type))
