"""Attempts: the starts of messages that may have killed a consumer, and the failures of those that are tried again."""

from functools import cache
from typing import Any

from sqlalchemy import (
    Delete,
    Insert,
    Integer,
    Update,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.statements.dialects import (
    among,
    insert_into,
)
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
    """Count the starts as ended, and the failure with the number `failed`; returns failures and first_failed_at.

    Repeated after a commit whose answer was lost, it counts no second one.

    Parameters: queue, message_id, failed. Index: the primary key. Locks: the row.
    """
    failed = bindparam("failed", type_=Integer)
    changed = {
        "starts": _ZERO,
        "failures": case((attempt.c.failures > failed, attempt.c.failures), else_=failed),
        "first_failed_at": func.coalesce(attempt.c.first_failed_at, _NOW),
        "touched_at": _NOW,
    }
    first = {"starts": _ZERO, "failures": failed, "first_failed_at": _NOW}
    return _count(dialect, first, changed, *_COUNTED[1:])


NOTED = ("handler", "type", "key", "attempt", "error", "next_at")
"""The columns of a message that is tried again."""


@cache
def note_retry(dialect: str) -> Insert:
    """Note the failure of a message that is tried again, unless `most` messages of the queue are noted already.

    Parameters: queue, message_id, most, and each of `NOTED`. Index: the primary key; it reads `most` rows of the queue
    at most. Locks: the row.
    """
    noted = select(_ONE).where(attempt.c.queue == bindparam("queue"), attempt.c.error.is_not(None))
    few = select(func.count()).select_from(noted.limit(bindparam("most", type_=Integer)).subquery("noted"))
    row = {name: bindparam(name, type_=attempt.c[name].type) for name in ("queue", "message_id", *NOTED)}
    values = row | {"first_failed_at": _NOW, "touched_at": _NOW}
    source = select(*values.values()).where(few.scalar_subquery() < bindparam("most", type_=Integer))
    into = insert_into(dialect, attempt).from_select(list(values), source, include_defaults=False)
    changed = {name: into.excluded[name] for name in (*NOTED, "touched_at")}
    upsert: Insert = into.on_conflict_do_update(index_elements=_ROW_KEY, set_=changed)
    return upsert


@cache
def forget_attempts(dialect: str) -> Delete:
    """Delete the counts of messages of a queue: they were handled, or are dead letters.

    Parameters: queue, ids. Index: the primary key. Locks: the rows.
    """
    return delete(attempt).where(attempt.c.queue == bindparam("queue"), among(dialect, attempt.c.message_id, "ids"))


@cache
def call_off() -> Update:
    """Subtract a start that ended without a result, and not because of the message.

    Parameters: at_queue, at_message_id. Index: the primary key. Locks: the row.
    """
    row = attempt.c.queue == bindparam("at_queue"), attempt.c.message_id == bindparam("at_message_id")
    return update(attempt).where(*row).values(starts=attempt.c.starts - _ONE, touched_at=_NOW)


def _count(dialect: str, first: dict[str, Any], changed: dict[str, Any], *returned: Any) -> ReturningInsert[Any]:
    row = {"queue": bindparam("queue"), "message_id": bindparam("message_id")} | first
    upsert = insert_into(dialect, attempt).values(row).on_conflict_do_update(index_elements=_ROW_KEY, set_=changed)
    counted: ReturningInsert[Any] = upsert.returning(*returned)
    return counted
