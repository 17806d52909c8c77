"""On PostgreSQL: what the open transaction that holds a key is busy with, and waiting for its end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from outboxkit.idempotency.asked import Locks
from outboxkit.idempotency.outcome import Fresh, InProgress, Mismatch, Outcome
from outboxkit.statements import idempotency as statements

_OF_KEY = 1
_GIVEN_UP = ("55P03", "40P01")
"""lock_not_available, deadlock_detected: either way the holder goes on."""
_LONGEST_MS = 2**31 - 1


def ask(connection: Connection, locks: Locks) -> InProgress | Mismatch | None:
    """What another transaction does with the key: the same request, or another one; None: it has ended."""
    return judge(connection.execute(statements.held_locks(), locks.to_find()).all(), locks.part_shown)


def judge(rows: Any, part: int) -> InProgress | Mismatch | None:
    """The verdict on rows of `held_locks`, for the half that stands for what is asked here.

    A transaction that has the key's lock and has told of nothing is none of ours: to be on the safe side, it is busy.
    """
    holders = {row.holder for row in rows if row.subid == _OF_KEY}
    if not holders:
        return None
    told = {row.part for row in rows if row.subid != _OF_KEY and row.holder in holders}
    return InProgress() if not told or part in told else Mismatch()


def wait(
    connection: Connection, locks: Locks, longest: timedelta, attempt: Callable[[], Outcome | None]
) -> Outcome | None:
    """Wait for the holder's end, then `attempt`; None: it did not end in time.

    All of it is in a savepoint: what the waiting has changed, the transaction's lock_timeout and the lock itself, goes
    with it, also where the database gave up. Only a run that begins here keeps the lock.
    """
    savepoint = connection.begin_nested()
    try:
        limit = min(max(round(longest / timedelta(milliseconds=1)), 1), _LONGEST_MS)
        before = connection.execute(statements.limit_wait(), {"limit": f"{limit}ms"}).one()[0]
        connection.execute(statements.wait_for_end(), {"request_lock": locks.request})
        connection.execute(statements.limit_wait(), {"limit": before})
        outcome = attempt()
    except DBAPIError as error:
        savepoint.rollback()
        if getattr(error.orig, "sqlstate", None) in _GIVEN_UP:
            return None
        raise
    if isinstance(outcome, Fresh):
        savepoint.commit()
    else:
        savepoint.rollback()
    return outcome
