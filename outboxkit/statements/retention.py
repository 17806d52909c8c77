"""Retention: the lock of the one pruner, and the deletes of old rows."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Delete,
    Select,
    String,
    and_,
    column,
    delete,
    func,
    literal_column,
    not_,
    or_,
    select,
    table,
    tuple_,
)
from sqlalchemy.sql.dml import ReturningDelete

from outboxkit.statements.dialects import (
    among_found,
    has_one_writer,
    row_id,
    unplaced_rows,
)
from outboxkit.tables import (
    UtcDateTime,
    attempt,
    dead_letter,
    effect,
    handler,
    idempotency,
    inbox,
    published,
)

# By the table, and not for the database: tenants may have a schema each.
_OID = literal_column(f"to_regclass('{inbox.name}')::oid::text", String)

_LOCK = func.hashtextextended(literal_column("'outboxkit:prune:'").concat(_OID), literal_column("0"))
"""The number of a session-level advisory lock that the one pruner of these tables holds."""


def try_prune_lock() -> Select[Any]:
    """Whether no other session prunes these tables; if so, this connection does from now on. PostgreSQL only.

    Locks: an advisory lock of these tables, until `release_prune_lock` or the end of the connection; it never waits.
    """
    return select(func.pg_try_advisory_lock(_LOCK))


def release_prune_lock() -> Select[Any]:
    """Release the lock of `try_prune_lock`. PostgreSQL only. Locks: none."""
    return select(func.pg_advisory_unlock(_LOCK))


def prune_dead(before: datetime, limit: int) -> ReturningDelete[Any]:
    """Delete at most `limit` dead letters from before this time; returns the resolution of each, null if open.

    Those that park a key stay. Index: none, it reads from the lowest number up to the limit. Locks: the rows that it
    deletes; those that are being resolved at this moment are left for the next time.
    """
    old = (
        select(dead_letter.c.id)
        .where(dead_letter.c.dead_at < before, not_(dead_letter.c.parked))
        .order_by(dead_letter.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete(dead_letter).where(dead_letter.c.id.in_(old)).returning(dead_letter.c.resolution)


def prune_idempotency(dialect: str, now: datetime, limit: int) -> Delete:
    """Delete at most `limit` requests whose keys have expired, the longest expired first.

    One with a lease that is not over stays: otherwise its run could not store its answer. Index:
    outboxkit_idempotency_expires. Locks: the rows that it deletes; those that a new run takes over at this moment are
    left to it.
    """
    expires_at, locked_until = idempotency.c.expires_at, idempotency.c.locked_until
    return _first(dialect, expires_at, expires_at < now, or_(locked_until.is_(None), locked_until < now), limit=limit)


LONGEST_START = timedelta(hours=1)
"""The longest time from the start of a handler to its effect. The inbox row is so much older, and is pruned earlier."""


def prune_effects(dialect: str, before: datetime, limit: int) -> Delete:
    """Delete at most `limit` effects that were last used before this time, and whose lease was over then.

    An effect of a message without a time stays until that message was handled, and goes with its inbox row. So effects
    are pruned before the inbox. Index: outboxkit_effect_used, and the inbox's primary key. Locks: the rows that it
    deletes; those that a run takes over at this moment are left to it.
    """
    used_at, row = effect.c.used_at, (inbox.c.handler == effect.c.handler, inbox.c.message_id == effect.c.message_id)
    timed = and_(effect.c.message_id.is_(None), used_at < before)
    handled_at = (
        select(inbox.c.processed_at).where(*row).scalar_subquery()
    )  # an EXISTS might be a hash of the whole inbox
    handled = and_(effect.c.message_id.is_not(None), handled_at < before)
    old = (used_at < before + LONGEST_START, effect.c.locked_until < before + LONGEST_START, or_(timed, handled))
    return _first(dialect, used_at, *old, limit=limit)


def _first(dialect: str, order: Column[Any], *old: ColumnElement[bool], limit: int) -> Delete:
    """A delete by row ids: by keys the planner would read the whole table for each batch."""
    rows = order.table
    id_ = row_id(dialect)
    oldest = select(id_).select_from(rows).where(*old).order_by(order).limit(limit).with_for_update(skip_locked=True)
    return delete(rows).where(among_found(dialect, id_, oldest))


def prune_published(dialect: str, before: datetime, limit: int) -> Delete:
    """Delete at most `limit` kept rows from before this time that are in no day's partition, the oldest first.

    Index: the primary key of the default partition, or of SQLite's plain table. Locks: the rows that it deletes.
    """
    rows = table(unplaced_rows(dialect, published), column("published_at", UtcDateTime), column("position", BigInteger))
    key = (rows.c.published_at, rows.c.position)
    old = select(*key).where(rows.c.published_at < before).order_by(*key).limit(limit)
    return delete(rows).where(tuple_(*key).in_(old))


def any_published() -> Select[Any]:
    """A row if any message is kept. Index: none, it stops at the first row. Locks: none."""
    return select(published.c.position).limit(1)


def prune_inbox(dialect: str, before: datetime, limit: int) -> Delete:
    """Delete at most `limit` rows with `processed_at` before this time that are in no day's partition.

    Index: outboxkit_inbox_processed on PostgreSQL; none on SQLite, where the scan stops at the limit. Locks: the rows
    that it deletes.
    """
    rows = table(unplaced_rows(dialect, inbox), column("processed_at", UtcDateTime))
    old = select(row_id(dialect)).select_from(rows).where(rows.c.processed_at < before).limit(limit)
    old = old if has_one_writer(dialect) else old.order_by(rows.c.processed_at)
    return delete(rows).where(among_found(dialect, row_id(dialect), old))


def prune_attempts(before: datetime, limit: int) -> Delete:
    """Delete at most `limit` counts that have not changed since this time.

    Index: none on the time; the table has few rows. Locks: the rows that it deletes.
    """
    old = select(*attempt.primary_key).where(attempt.c.touched_at < before).limit(limit)
    return delete(attempt).where(tuple_(*attempt.primary_key).in_(old))


def prune_handlers(before: datetime) -> Delete:
    """Forget handlers that no consumer was seen with since before this moment.

    Index: none, the table has few rows. Locks: the rows that it deletes.
    """
    return delete(handler).where(handler.c.last_seen < before)
