"""One pruner at a time; dead letters, idempotency keys and effects that are old enough to go."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Delete,
    Integer,
    Select,
    String,
    any_,
    cast,
    delete,
    func,
    literal_column,
    not_,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.dml import ReturningDelete

from outboxkit.tables import dead_letter, effect, idempotency, inbox

# By the table, and not for the database: tenants may have a schema each.
_OID = cast(cast(func.to_regclass(literal_column(f"'{inbox.name}'")), postgresql.OID), String)
_LOCK = func.hashtextextended(literal_column("'outboxkit:prune:'").concat(_OID), literal_column("0"))
"""Of a session-level advisory lock, which the one pruner of these tables holds."""


def be_the_one() -> Select[Any]:
    """Whether nobody else prunes these tables; from then on this connection does. PostgreSQL only.

    Locks: an advisory lock of these tables, until `let_others` or the end of the connection; it never waits.
    """
    return select(func.pg_try_advisory_lock(_LOCK))


def let_others() -> Select[Any]:
    """Give back what `be_the_one` took. PostgreSQL only. Locks: none."""
    return select(func.pg_advisory_unlock(_LOCK))


def prune_dead(before: datetime, limit: int) -> ReturningDelete[Any]:
    """Forget at most `limit` dead letters from before this moment; returns the resolution of each, null where open.

    Those that park a key stay. Index: none, it reads from the lowest number up to the limit. Locks: the rows that it
    deletes; those that somebody resolves at this moment are left for the next time.
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
    """Forget at most `limit` requests whose keys have expired, the longest expired first.

    One with a lease that is not over stays: its run could not store its answer any more. Index:
    outboxkit_idempotency_expires. Locks: the rows that it deletes; those that a new run takes over at this moment are
    left to it.
    """
    expires_at, locked_until = idempotency.c.expires_at, idempotency.c.locked_until
    return _first(dialect, expires_at, expires_at < now, or_(locked_until.is_(None), locked_until < now), limit=limit)


def prune_effects(dialect: str, before: datetime, limit: int) -> Delete:
    """Forget at most `limit` effects that were started before this moment, and whose lease was over then.

    Index: outboxkit_effect_started. Locks: the rows that it deletes; those that a run takes over at this moment are
    left to it.
    """
    started_at = effect.c.started_at
    return _first(dialect, started_at, started_at < before, effect.c.locked_until < before, limit=limit)


def _first(dialect: str, order: Column[Any], *old: ColumnElement[bool], limit: int) -> Delete:
    """By their places: by their keys the planner would read the whole table for each batch."""
    rows = order.table
    place: Any = literal_column("rowid", Integer) if dialect == "sqlite" else literal_column("ctid")
    found = select(place).select_from(rows).where(*old).order_by(order).limit(limit).with_for_update(skip_locked=True)
    if dialect == "sqlite":
        return delete(rows).where(place.in_(found))
    return delete(rows).where(place == any_(func.array(found.scalar_subquery())))
