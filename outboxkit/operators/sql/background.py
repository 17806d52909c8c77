"""Statements about operations that go on in the background: begun, leased to one worker at a time, stopped, ended."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Insert,
    Select,
    Update,
    bindparam,
    delete,
    func,
    insert,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningUpdate

from outboxkit.statements.dialects import interval, statement_time
from outboxkit.tables import audit, operation

_ACTION = operation.c.action
_WORKER = bindparam("by_worker", type_=operation.c.worker.type)
_PLACE = bindparam("at_place", type_=operation.c.place.type)


def insert_operation() -> Insert:
    """Begin an operation. Parameters: action, plan, total. Index: none. Locks: the new row."""
    return insert(operation).inline()


def lease(dialect: str) -> ReturningUpdate[Any]:
    """Take the first operation that nobody works at; returns it, if there is one.

    Parameters: by_worker, lasts. Index: the primary key, all of it: ended operations have no row. Locks: the row; those
    that others take at this moment are skipped.
    """
    is_free = or_(operation.c.leased_until.is_(None), operation.c.leased_until < statement_time(dialect))
    first = select(_ACTION).where(is_free).order_by(_ACTION).limit(1).with_for_update(skip_locked=True)
    until = statement_time(dialect, interval("lasts"))
    taken = update(operation).where(first.scalar_subquery() == _ACTION).values(worker=_WORKER, leased_until=until)
    return taken.returning(operation)


def renew(dialect: str) -> ReturningUpdate[Any]:
    """Renew the lease; returns whether the operation is to stop, and nothing if the lease is another one's.

    Parameters: of, by_worker, lasts, at_place (null: as before). Index: the primary key. Locks: the row.
    """
    until, place = statement_time(dialect, interval("lasts")), func.coalesce(_PLACE, operation.c.place)
    return update(operation).where(*_leased()).values(leased_until=until, place=place).returning(operation.c.stops)


def set_total() -> Update:
    """Write down the number of messages. Parameters: of, messages. Index: the primary key. Locks: the row."""
    return update(operation).where(_is_of()).values(total=bindparam("messages", type_=BigInteger))


def give_back() -> Update:
    """Give the lease back, so that another worker goes on at once.

    Parameters: of, by_worker. Index: the primary key. Locks: the row.
    """
    return update(operation).where(*_leased()).values(leased_until=null())


def ask_for_stop() -> ReturningUpdate[Any]:
    """Ask for the end of an operation; returns its number, if it has not ended.

    Parameters: of. Index: the primary key. Locks: the row.
    """
    return update(operation).where(_is_of()).values(stops=true()).returning(_ACTION)


def delete_operation() -> ReturningDelete[Any]:
    """Delete an operation that has ended; returns its number, unless the lease is another one's.

    Parameters: of, by_worker. Index: the primary key. Locks: the row.
    """
    return delete(operation).where(*_leased()).returning(_ACTION)


def newest_operations() -> Select[Any]:
    """The operations that have not ended, the newest first, with their rows of the audit trail.

    Parameters: limit. Index: the primary keys. Locks: none.
    """
    return _with_action().order_by(_ACTION.desc()).limit(bindparam("limit", type_=BigInteger))


def one_operation() -> Select[Any]:
    """One operation with its row of the audit trail. Parameters: of. Index: the primary keys. Locks: none."""
    return _with_action().where(_is_of())


def one_action() -> Select[Any]:
    """An action of the audit trail. Parameters: of. Index: the primary key. Locks: none."""
    return select(audit).where(audit.c.id == bindparam("of", type_=BigInteger))


def _with_action() -> Select[Any]:
    columns = [operation.c[name] for name in ("action", "total", "stops", "leased_until")]
    trail = [
        audit.c.action.label("name"),
        *(audit.c[name] for name in ("operator", "filter", "started_at", "affected")),
    ]
    return select(*columns, *trail).join_from(operation, audit, audit.c.id == _ACTION)


def _is_of() -> ColumnElement[bool]:
    return bindparam("of", type_=BigInteger) == _ACTION


def _leased() -> tuple[ColumnElement[bool], ...]:
    return (_is_of(), operation.c.worker == _WORKER)
