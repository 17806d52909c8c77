"""Statements about what operators do: the audit trail, and the pauses of relays and consumers."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    TextClause,
    Update,
    bindparam,
    case,
    delete,
    func,
    literal,
    null,
    select,
    text,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert

from outboxkit.statements.dialects import insert_into, interval, statement_time
from outboxkit.tables import LAST_MOMENT, UtcDateTime, audit, pause

_RESULT = bindparam("outcome", type_=audit.c.result.type)
_COUNTED = bindparam("counted", type_=BigInteger)


def insert_action(dialect: str) -> ReturningInsert[Any]:
    """Write the row of an action; returns its id. With an outcome the action has ended, without one it begins.

    Parameters: action, operator, filter, counted, outcome (may be null). Index: none. Locks: the new row.
    """
    now = statement_time(dialect)
    texts = {name: bindparam(name, type_=audit.c[name].type) for name in ("action", "operator", "filter")}
    moments = {"started_at": now, "ended_at": case((_RESULT.is_not(None), now), else_=null())}
    values = texts | moments | {"affected": _COUNTED, "result": _RESULT}
    statement: ReturningInsert[Any] = insert_into(dialect, audit).values(values).returning(audit.c.id)
    return statement


def count_action() -> Update:
    """Add to the count of a running action. Parameters: of, counted. Index: the primary key. Locks: the row."""
    return update(audit).where(_is_of()).values(affected=audit.c.affected + _COUNTED)


def end_action(dialect: str) -> Update:
    """Write the outcome of an action, and add to its count.

    Parameters: of, outcome, counted. Index: the primary key. Locks: the row.
    """
    affected = audit.c.affected + _COUNTED
    return update(audit).where(_is_of()).values(ended_at=statement_time(dialect), result=_RESULT, affected=affected)


def newest_actions() -> Select[Any]:
    """The newest actions, since a time. Parameters: since, limit. Index: outboxkit_audit_started. Locks: none."""
    newest = (audit.c.started_at.desc(), audit.c.id.desc())
    since = audit.c.started_at >= bindparam("since", type_=UtcDateTime)
    return select(audit).where(since).order_by(*newest).limit(bindparam("limit", type_=BigInteger))


def _is_of() -> Any:
    return audit.c.id == bindparam("of", type_=BigInteger)


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


def acknowledge() -> TextClause:
    """Say that a process keeps its pause, for each of its sessions. PostgreSQL only.

    Parameters: pause (the first key of the locks), pids (of the sessions). Index: none. Locks: shared advisory ones,
    until the session ends. It waits for nobody.
    """
    return text(
        "SELECT pg_try_advisory_lock_shared(CAST(:pause AS integer), pid) FROM unnest(CAST(:pids AS integer[])) AS pid"
    )


def acknowledgements() -> TextClause:
    """The sessions for which a pause is acknowledged, and the one that keeps each lock. PostgreSQL only.

    Parameters: pause. Index: none, it reads pg_locks. Locks: none.
    """
    return text(
        "SELECT CAST(objid AS bigint) AS session, pid AS keeper FROM pg_locks WHERE locktype = 'advisory' "
        "AND objsubid = 2 AND granted AND CAST(classid AS bigint) = :pause "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


def _is_active(dialect: str) -> ColumnElement[bool]:
    # No IS NULL: behind a DELETE, the RETURNING of older versions of SQLite takes it for false.
    return func.coalesce(pause.c.until, _NEVER) > statement_time(dialect)
