"""One pruner at a time, and dead letters that are old enough to go."""

from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, not_, select
from sqlalchemy.sql.dml import ReturningDelete

from outboxkit.tables import dead_letter

LOCK = 0x6F75_7462_7072
"""Of a session-level advisory lock, "outbpr", which the one pruner of a database holds."""


def be_the_one() -> Select[Any]:
    """Whether nobody else prunes; from then on this connection does. PostgreSQL only.

    Locks: the advisory lock `LOCK`, until `let_others` or the end of the connection; it never waits.
    """
    return select(func.pg_try_advisory_lock(LOCK))


def let_others() -> Select[Any]:
    """Give back what `be_the_one` took. PostgreSQL only. Locks: none."""
    return select(func.pg_advisory_unlock(LOCK))


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
