"""Statements of the audit trail: the actions of operators."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Select,
    Update,
    bindparam,
    case,
    null,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.statements.dialects import insert_into, statement_time
from outboxkit.tables import UtcDateTime, audit

_RESULT = bindparam("outcome", type_=audit.c.result.type)
_COUNTED = bindparam("counted", type_=BigInteger)


def insert_action(dialect: str) -> ReturningInsert[Any]:
    """Write the row of an action; returns its id. With an outcome the action has ended, without one it begins.

    Parameters: action, operator, filter, counted, outcome and form (may be null). Index: outboxkit_audit_form, which
    refuses a second action of a form. Locks: the new row; it waits for another one of its form.
    """
    now = statement_time(dialect)
    texts = {name: bindparam(name, type_=audit.c[name].type) for name in ("action", "operator", "filter", "form")}
    moments = {"started_at": now, "ended_at": case((_RESULT.is_not(None), now), else_=null())}
    values = texts | moments | {"affected": _COUNTED, "result": _RESULT}
    statement: ReturningInsert[Any] = insert_into(dialect, audit).values(values).returning(audit.c.id)
    return statement


def action_of_form() -> Select[Any]:
    """The action that a form has begun. Parameters: form. Index: outboxkit_audit_form. Locks: none."""
    return select(audit.c.id).where(audit.c.form == bindparam("form", type_=audit.c.form.type))


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
    """The newest actions since a time, behind an action.

    Parameters: since; before_at and before_id: the action; limit. Index: outboxkit_audit_started. Locks: none.
    """
    order, at = (audit.c.started_at, audit.c.id), bindparam("before_at", type_=UtcDateTime)
    since = audit.c.started_at >= bindparam("since", type_=UtcDateTime)
    behind = tuple_(*order) < tuple_(at, bindparam("before_id", type_=BigInteger))
    newest = select(audit).where(since, audit.c.started_at <= at, behind).order_by(*(each.desc() for each in order))
    return newest.limit(bindparam("limit", type_=BigInteger))


def _is_of() -> Any:
    return audit.c.id == bindparam("of", type_=BigInteger)
