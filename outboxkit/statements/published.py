"""Retention: the lock of the one pruner, deletes of old rows, and reads of kept messages."""

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
    bindparam,
    column,
    delete,
    func,
    literal_column,
    not_,
    or_,
    select,
    table,
    tuple_,
    type_coerce,
)
from sqlalchemy.sql.dml import ReturningDelete

from outboxkit.codec.rows import COLUMNS
from outboxkit.statements.dialects import (
    IN_THIS_DATABASE,
    LOCKS,
    among,
    among_found,
    lists,
    row_id,
    transaction_time,
    unplaced_rows,
)
from outboxkit.statements.partitions import PUBLISHED
from outboxkit.tables import UtcDateTime, dead_letter, effect, idempotency, inbox, outbox, published

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


KEPT_COLUMNS = (published.c.published_at, published.c.position, *(published.c[name] for name in COLUMNS))
"""The columns of a kept row that a replay reads. It is for one queue, so it needs no reply."""


def moment(dialect: str) -> Select[Any]:
    """The time by the database's clock: the start of the transaction. Locks: none."""
    return select(type_coerce(transaction_time(dialect), UtcDateTime))


def keep_partitions() -> Select[Any]:
    """Keep partitions from being changed until the transaction ends, so that no row moves in the middle of a page.

    PostgreSQL only. Locks: the advisory lock of `partitions.lock_partitions`, shared.
    """
    return select(func.pg_advisory_xact_lock_shared(PUBLISHED.lock))


def settling() -> Select[Any]:
    """The transactions of relays that have claimed rows or are keeping them now: virtual transaction ids.

    Rows that they keep are dated before their commit. PostgreSQL only. Index: none, it reads pg_locks. Locks: none on
    tables.
    """
    ways = [(outbox, "RowShareLock"), (published, "RowExclusiveLock")]
    held = (
        and_(
            LOCKS.c.relation == func.to_regclass(literal_column(f"'{one.name}'")),
            LOCKS.c.mode == literal_column(f"'{mode}'"),
        )
        for one, mode in ways
    )
    return select(LOCKS.c.virtualtransaction).where(
        LOCKS.c.locktype == literal_column("'relation'"),
        IN_THIS_DATABASE,
        or_(*held),
        LOCKS.c.pid.is_distinct_from(func.pg_backend_pid()),
    )


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


def count_kept(*, type_: str | None, key: str | None) -> Select[int, Any, Any]:
    """The number of kept rows that a replay would publish, and the times of the first and the last one.

    Parameters: destination, since, until. Index: the primary key, from `since` to `until`. Locks: none.
    """
    at = published.c.published_at
    return select(func.count(), func.min(at), func.max(at)).where(*_conditions(type_, key))


def end_of_kept() -> Select[Any]:
    """The time of the `window`-th kept row, from the first one on; none if there are fewer.

    Parameters: since, until, window. Index: the primary key of each partition. Locks: none.
    """
    at, since = published.c.published_at, bindparam("since", type_=UtcDateTime)
    rows = select(at).where(at >= since, at < bindparam("until", type_=UtcDateTime)).order_by(at, published.c.position)
    return rows.offset(bindparam("window", type_=BigInteger) - literal_column("1")).limit(literal_column("1"))


def kept_page(*, type_: str | None, key: str | None) -> Select[Any]:
    """The next kept rows of a destination behind a row, in the order of their publishing: by key in position order.

    Parameters: destination, since, until; after_at and after_position: the row; limit. Index: the primary key of each
    partition from there on. Locks: none.
    """
    order = (published.c.published_at, published.c.position)
    after = (bindparam("after_at", type_=UtcDateTime), bindparam("after_position", type_=BigInteger))
    return (
        select(*KEPT_COLUMNS)
        .where(*_conditions(type_, key), published.c.published_at >= after[0], tuple_(*order) > tuple_(*after))
        .order_by(*order)
        .limit(bindparam("limit", type_=BigInteger))
    )


def kept_places(dialect: str, *, type_: str | None, key: str | None) -> Select[Any]:
    """The time, the position and the id of each kept row of a destination with one of these ids.

    Parameters: destination, since, until, ids. Index: the primary key, from `since` to `until`. Locks: none.
    """
    columns = (published.c.published_at, published.c.position, published.c.message_id)
    asked = lists(dialect, {"ids": published.c.message_id.type})
    return select(*columns).where(*_conditions(type_, key), published.c.message_id == asked.c["ids"], *asked.where)


def kept_rows(dialect: str) -> Select[Any]:
    """The kept rows at these positions, published in a period, in the order of `kept_page`.

    Parameters: first_at, last_at (both are part of it), positions. Index: the primary key, from `first_at` to
    `last_at`. Locks: none.
    """
    at = published.c.published_at
    first, last = (bindparam(name, type_=UtcDateTime) for name in ("first_at", "last_at"))
    ours = (at.between(first, last), among(dialect, published.c.position, "positions"))
    return select(*KEPT_COLUMNS).where(*ours).order_by(at, published.c.position)


def _conditions(type_: str | None, key: str | None) -> list[ColumnElement[bool]]:
    """The conditions of a replay's rows. `since` is part of the range, `until` is not."""
    conditions = [
        published.c.destination == bindparam("destination", type_=published.c.destination.type),
        published.c.published_at >= bindparam("since", type_=UtcDateTime),
        published.c.published_at < bindparam("until", type_=UtcDateTime),
    ]
    conditions += [published.c.type == type_] if type_ is not None else []
    conditions += [published.c.key == key] if key is not None else []
    return conditions
