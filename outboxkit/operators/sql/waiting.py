"""Messages of the outbox that wait for a time: delayed and held ones. Parked ones are not among them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Delete, Select, Update, and_, bindparam, delete, func, select, update

from outboxkit.tables import PARKED, UtcDateTime, outbox, readable

_LIMIT = bindparam("limit", type_=BigInteger)
_PARKED = bindparam("parked_until", PARKED, type_=UtcDateTime)
_NOW = bindparam("now", type_=UtcDateTime)
_is_later = outbox.c.due_at > _NOW
_COLUMNS = ("position", "message_id", "type", "key", "destination", "due_at", "held", "attempts", "last_error")


@dataclass(frozen=True, slots=True)
class WaitingSelection:
    """A choice of waiting messages: those that match every field that is set.

    Attributes:
        message_ids: with one of these ids; if empty, all.
        after: due after this time.
    """

    message_ids: tuple[str, ...] = ()
    type: str | None = None
    key: str | None = None
    after: datetime | None = None


def next_due(waiting: WaitingSelection) -> Select[Any]:
    """Waiting messages of a selection, by destination, the next due first.

    Parameters: limit. Indexes: outboxkit_outbox_due, or outboxkit_outbox_delayed for ids. Locks: none.
    """
    order = (outbox.c.destination, outbox.c.due_at, outbox.c.position)
    columns = (readable(outbox.c[name]) for name in _COLUMNS)
    return select(*columns).where(_are(waiting)).order_by(*order).limit(_LIMIT)


def count_by_type(waiting: WaitingSelection, *, later: bool) -> Select[Any]:
    """The waiting messages of a selection by type and destination, their first and last due times and highest position.

    Reads every one of them, or those that are due `later` than now. Parameters: now, if so. Indexes: as `next_due`.
    Locks: none.
    """
    kind, due = (outbox.c.type, outbox.c.destination), outbox.c.due_at
    figures = (func.count().label("rows"), func.min(due).label("first"), func.max(due).label("last"))
    highest = func.max(outbox.c.position).label("upto")
    conditions = (_are(waiting), *([_is_later] if later else []))
    return select(*kind, *figures, highest).where(*conditions).group_by(*kind).order_by(func.count().desc(), *kind)


def make_due(waiting: WaitingSelection) -> Update:
    """Make up to `limit` messages of a selection due now, that are due later.

    Parameters: now, upto (the highest position), limit. Indexes: as `next_due`. Locks: the rows; if a relay has one,
    this waits for it.
    """
    return update(outbox).where(*_of(waiting, _is_later)).values(due_at=_NOW)


def delete_waiting(waiting: WaitingSelection) -> Delete:
    """Delete up to `limit` messages of a selection.

    Parameters: upto, limit. Indexes: as `next_due`. Locks: as `make_due`.
    """
    return delete(outbox).where(*_of(waiting))


def is_any_left(waiting: WaitingSelection, *, later: bool) -> Select[Any]:
    """Whether `make_due` (`later`) or `delete_waiting` has anything left to do. Parameters: as there. Locks: none."""
    return select(_some(waiting, *([_is_later] if later else [])).exists())


def _of(waiting: WaitingSelection, *also: ColumnElement[bool]) -> tuple[ColumnElement[bool], ...]:
    """The conditions of a page of rows to change.

    If a relay has changed a row meanwhile, PostgreSQL asks them again, but for the subquery.
    """
    return (outbox.c.position.in_(_some(waiting, *also)), _are(waiting), *also)


def _some(waiting: WaitingSelection, *also: ColumnElement[bool]) -> Select[Any]:
    bound = outbox.c.position <= bindparam("upto", type_=BigInteger)
    return select(outbox.c.position).where(_are(waiting), bound, *also).limit(_LIMIT)


def _are(waiting: WaitingSelection) -> ColumnElement[bool]:
    columns, due = outbox.c, outbox.c.due_at
    conditions: list[ColumnElement[bool]] = [due.is_not(None), due < _PARKED]
    if waiting.message_ids:
        conditions.append(columns.message_id.in_(waiting.message_ids))
    equal = {name: getattr(waiting, name) for name in ("type", "key")}
    conditions += [columns[name] == value for name, value in equal.items() if value is not None]
    if waiting.after is not None:
        conditions.append(due > waiting.after)
    return and_(*conditions)
