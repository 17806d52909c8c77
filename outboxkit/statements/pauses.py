"""Statements about the pauses of relays and consumers."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    case,
    delete,
    func,
    literal,
    select,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert

from outboxkit.message import LAST_MOMENT
from outboxkit.statements.dialects import insert_into, interval, statement_time
from outboxkit.tables import UtcDateTime, pause

_PROCESS, _NAME = bindparam("process", type_=pause.c.process.type), bindparam("name", type_=pause.c.name.type)
_NEVER = literal(LAST_MOMENT, UtcDateTime)
_OURS = (pause.c.process == _PROCESS, pause.c.name == _NAME)


def current_pause(dialect: str) -> Select[Any]:
    """The pause of a relay or consumer, or no row. Parameters: process, name. Index: the primary key. Locks: none."""
    return select(pause).where(*_OURS, _is_active(dialect))


def active_pauses(dialect: str) -> Select[Any]:
    """All pauses of now. Index: none, the table has a row for each destination and queue at most. Locks: none."""
    return select(pause).where(_is_active(dialect)).order_by(pause.c.process, pause.c.name)


def begin_pause(dialect: str) -> ReturningInsert[Any]:
    """Pause a relay or consumer; returns the pause. One that is paused already gets a new end, reason and operator.

    Parameters: process, name, lasts (null: until it is resumed), why, paused_by. Index: the primary key. Locks: the
    row.
    """
    now = statement_time(dialect)
    row = {
        "process": _PROCESS,
        "name": _NAME,
        "since": now,
        "until": statement_time(dialect, interval("lasts")),
        "why": bindparam("why", type_=pause.c.why.type),
        "paused_by": bindparam("paused_by", type_=pause.c.paused_by.type),
    }
    changed = {name: row[name] for name in ("until", "why", "paused_by")}
    since = case((_is_active(dialect), pause.c.since), else_=now)
    statement: ReturningInsert[Any] = (
        insert_into(dialect, pause)
        .values(row)
        .on_conflict_do_update(index_elements=list(pause.primary_key), set_={"since": since, **changed})
        .returning(pause)
    )
    return statement


def end_pause(dialect: str) -> ReturningDelete[Any]:
    """Resume a relay or consumer; returns its pause, and whether its time was not over yet.

    Parameters: process, name. Index: the primary key. Locks: the row.
    """
    return delete(pause).where(*_OURS).returning(pause, _is_active(dialect).label("was_active"))


def _is_active(dialect: str) -> ColumnElement[bool]:
    # No IS NULL: behind a DELETE, the RETURNING of older versions of SQLite takes it for false.
    return func.coalesce(pause.c.until, _NEVER) > statement_time(dialect)
