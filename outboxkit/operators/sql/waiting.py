"""Messages of the outbox that wait for a time: delayed and held ones. Parked ones are not among them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Delete, Select, Update, and_, bindparam, delete, select, update

from outboxkit.statements.dialects import among
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


def all_waiting(waiting: WaitingSelection, *, later: bool) -> Select[Any]:
    """Positions, types, destinations and due times of a selection, or of those that are due `later` than now.

    Parameters: now, if so. Indexes: as `next_due`. Locks: none.
    """
    columns = (readable(outbox.c[name]) for name in ("position", "type", "destination", "due_at"))
    return select(*columns).where(_are(waiting), *([_is_later] if later else []))


def make_due(dialect: str, waiting: WaitingSelection) -> Update:
    """Make those of these messages due now that are still in the selection, and due later.

    Parameters: now, positions. Index: the primary key. Locks: the rows; if a relay has one, this waits for it, and
    then looks at the row once more.
    """
    return (
        update(outbox)
        .where(among(dialect, outbox.c.position, "positions"), _are(waiting), _is_later)
        .values(due_at=_NOW)
    )


def delete_waiting(dialect: str, waiting: WaitingSelection) -> Delete:
    """Delete those of these messages that are still in the selection.

    Parameters: positions. Index: the primary key. Locks: as `make_due`.
    """
    return delete(outbox).where(among(dialect, outbox.c.position, "positions"), _are(waiting))


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
