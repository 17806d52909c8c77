"""Messages that may be killing their consumer, or that wait in one that keeps an order: starts and failures, counted.

A row is there only while a message is under suspicion or has failed; it goes when its handler has ended.
"""

from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Integer,
    Update,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.statements.conflicts import insert_into
from outboxkit.tables import attempt

_ROW_KEY = list(attempt.primary_key)
_COUNTED = (attempt.c.starts, attempt.c.failures, attempt.c.first_failed_at)
_ONE, _ZERO = literal_column("1", Integer), literal_column("0", Integer)
_NOW = func.current_timestamp()


@cache
def start(dialect: str) -> ReturningInsert[Any]:
    """Count a start before the handler is called; returns starts (with this one), failures and first_failed_at.

    Parameters: queue, message_id. Index: the primary key. Locks: the row.
    """
    changed = {"starts": attempt.c.starts + _ONE, "touched_at": _NOW}
    return _count(dialect, {"starts": _ONE}, changed, *_COUNTED)


@cache
def fail(dialect: str) -> ReturningInsert[Any]:
    """Count a failure, and the starts as ended; returns failures (with this one) and first_failed_at.

    Parameters: queue, message_id. Index: the primary key. Locks: the row.
    """
    changed = {
        "starts": _ZERO,
        "failures": attempt.c.failures + _ONE,
        "first_failed_at": func.coalesce(attempt.c.first_failed_at, _NOW),
        "touched_at": _NOW,
    }
    first = {"starts": _ZERO, "failures": _ONE, "first_failed_at": _NOW}
    return _count(dialect, first, changed, *_COUNTED[1:])


@cache
def call_off() -> Update:
    """A start has ended without an answer, and it was not the message that ended it: it does not count.

    Parameters: at_queue, at_message_id. Index: the primary key. Locks: the row.
    """
    this = attempt.c.queue == bindparam("at_queue"), attempt.c.message_id == bindparam("at_message_id")
    return update(attempt).where(*this).values(starts=attempt.c.starts - _ONE, touched_at=_NOW)


@cache
def forget() -> Delete:
    """The message is done with: handled, or among the dead letters.

    Parameters: queue, message_id. Index: the primary key. Locks: the row.
    """
    return delete(attempt).where(*_this())


def prune_attempts(before: datetime, limit: int) -> Delete:
    """Forget at most `limit` counts that nothing has changed since before this moment.

    Index: none on the time; the table has few rows. Locks: the rows that it deletes.
    """
    old = select(*_ROW_KEY).where(attempt.c.touched_at < before).limit(limit)
    return delete(attempt).where(tuple_(*_ROW_KEY).in_(old))


def _count(dialect: str, first: dict[str, Any], changed: dict[str, Any], *returned: Any) -> ReturningInsert[Any]:
    row = {"queue": bindparam("queue"), "message_id": bindparam("message_id")} | first
    upsert = insert_into(dialect, attempt).values(row).on_conflict_do_update(index_elements=_ROW_KEY, set_=changed)
    counted: ReturningInsert[Any] = upsert.returning(*returned)
    return counted


def _this() -> tuple[ColumnElement[bool], ...]:
    return attempt.c.queue == bindparam("queue"), attempt.c.message_id == bindparam("message_id")
