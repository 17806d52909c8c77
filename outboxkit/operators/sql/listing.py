"""Pages of messages: each reads a window of rows in the order of one index, and filters what it has read.

No index has types, ids and correlation ids of waiting or published messages: one would cost each insert
(`docs/decisions/0008`). So a page reads so many rows at most, and says where the next one goes on.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    String,
    Table,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)

from outboxkit.statements.dialects import seconds_between
from outboxkit.tables import PARKED, UtcDateTime, outbox, published, readable, ready_place

WaitingState = Literal["ready", "delayed", "held", "parked"]
_LIMIT = bindparam("limit", type_=BigInteger)
_COMMON = ("message_id", "type", "key", "destination", "queue", "correlation_id")
_PARKED = literal(PARKED, UtcDateTime)


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of messages: those that match every field that is set.

    Attributes:
        kept: published messages that are kept; otherwise those that wait in the outbox.
        state: of waiting ones.
        since, before: bounds of the time at which they were added, or for kept ones published.
    """

    kept: bool = False
    type: str | None = None
    key: str | None = None
    destination: str | None = None
    correlation_id: str | None = None
    state: WaitingState | None = None
    prefix: str | None = None
    since: datetime | None = None
    before: datetime | None = None


class Walk(NamedTuple):
    """An order in which rows are read.

    Attributes:
        order: the columns of an index.
        where: the conditions of the index.
        backwards: whether the last row comes first.
        place: the position as the index has it.
    """

    table: Table
    order: tuple[str, ...]
    where: tuple[ColumnElement[bool], ...] = ()
    backwards: bool = False
    place: ColumnElement[int] = outbox.c.position

    def columns(self) -> list[Any]:
        """What the index orders by."""
        return [self.place if self.table.c[name] is outbox.c.position else self.table.c[name] for name in self.order]


_READY, _LATER = outbox.c.due_at.is_(None), outbox.c.due_at.is_not(None)
_OF_KEY = ("key", "destination", "position")
WAITING, KEPT = Walk(outbox, ("position",)), Walk(published, ("published_at", "position"), backwards=True)
READY, LATER = (
    Walk(outbox, ("destination", "position"), (_READY,)),
    Walk(outbox, ("destination", "due_at", "position"), (_LATER,)),
)
READY_OF_KEY, HELD_OF_KEY = Walk(outbox, _OF_KEY, (_READY,), place=ready_place), Walk(outbox, _OF_KEY, (outbox.c.held,))


def walks_of(filter_: Choice) -> tuple[Walk, ...]:
    """The walks that lead to the messages of a filter; several have one order.

    No index has delayed rows by their key.
    """
    if filter_.kept:
        return (KEPT,)
    if filter_.key is not None and filter_.state != "delayed":
        of_state = {"ready": (READY_OF_KEY,), None: (READY_OF_KEY, HELD_OF_KEY)}
        return of_state.get(filter_.state, (HELD_OF_KEY,))
    return (WAITING if filter_.state is None else READY if filter_.state == "ready" else LATER,)


def page_of_messages(filter_: Choice, walk: Walk, after: tuple[Any, ...] | None) -> Select[Any]:
    """Rows that match, among the next `window` ones of a walk; and the last row of a full window.

    Parameters: window, limit. Indexes: the primary key, of each partition; for a state outboxkit_outbox_ready or
    outboxkit_outbox_due, for a key outboxkit_outbox_key or outboxkit_outbox_held. Locks: none.
    """
    table, order = walk.table, walk.columns()
    directed = [each.desc() if walk.backwards else each for each in order]
    window = bindparam("window", type_=BigInteger)
    number = func.row_number().over(order_by=directed).label("number")
    columns = [
        *(table.c[name] for name in walk.order),
        *(readable(table.c[name]) for name in (*_COMMON, "created_at") if name not in walk.order),
    ]
    columns += [each for each in (published.c.published_at, outbox.c.attempts, outbox.c.due_at) if each.table is table]
    columns += (
        [_state().label("state"), func.substr(outbox.c.last_error, 1, 500, type_=Text).label("last_error")]
        if table is outbox
        else []
    )
    read = select(*dict.fromkeys(columns), number).where(*_bounds(filter_, walk, order, after)).order_by(*directed)
    rows = read.limit(window).subquery("rows_read")
    is_match = and_(true(), *_matches(filter_, rows.c))
    found = select(rows, is_match.label("is_match")).where(or_(is_match, rows.c.number == window))
    return found.order_by(rows.c.number).limit(_LIMIT)


def _bounds(filter_: Choice, walk: Walk, order: list[Any], after: tuple[Any, ...] | None) -> list[ColumnElement[bool]]:
    """The conditions that an index answers. A range of one keeps its column in the order, and the planner on it."""
    columns, bounds = walk.table.c, list(walk.where)
    if after is not None:
        place, row = (
            tuple_(*order),
            tuple_(*(literal(value, each.type) for value, each in zip(after, order, strict=True))),
        )
        bounds.append(place < row if walk.backwards else place > row)
    if "key" in walk.order:
        bounds.append(columns.key.between(filter_.key, filter_.key))
    if "destination" in walk.order and filter_.destination is not None:
        bounds.append(columns.destination.between(filter_.destination, filter_.destination))
        if filter_.state == "parked" and walk is LATER:
            bounds.append(columns.due_at >= _PARKED)
    if filter_.kept:
        bounds += [columns.published_at >= filter_.since] if filter_.since is not None else []
        bounds += [columns.published_at < filter_.before] if filter_.before is not None else []
        bounds += [columns.published_at <= after[0]] if after is not None else []  # it spares later partitions
    return bounds


def _matches(filter_: Choice, columns: Any) -> list[ColumnElement[bool]]:
    equal = {name: getattr(filter_, name) for name in ("type", "key", "destination", "correlation_id", "state")}
    matches = [columns[name] == value for name, value in equal.items() if value is not None]
    if filter_.prefix is not None:
        matches.append(func.substr(columns.message_id, 1, len(filter_.prefix)) == filter_.prefix)
    if not filter_.kept:
        matches += [columns.created_at >= filter_.since] if filter_.since is not None else []
        matches += [columns.created_at < filter_.before] if filter_.before is not None else []
    return matches


def _state() -> ColumnElement[str]:
    """The state of a row of the outbox."""
    names = {each: literal_column(f"'{each}'", String) for each in ("ready", "delayed", "held", "parked")}
    rules = ((_READY, names["ready"]), (outbox.c.due_at >= _PARKED, names["parked"]), (outbox.c.held, names["held"]))
    return case(*rules, else_=names["delayed"])


_CONTENT = ("type", "payload", "headers", "content_type", "content_encoding", "version")


def content_of(table: Table) -> Select[Any]:
    """What is in a message of the outbox, a kept one, or a dead letter.

    Parameters: the columns of the table's primary key. Index: the primary key, of one partition. Locks: none.
    """
    of = (column == bindparam(column.name, type_=column.type) for column in table.primary_key)
    return select(*(table.c[name] for name in _CONTENT)).where(*of)


def held_keys() -> Select[Any]:
    """Keys whose messages wait for a retry of the first one: key and rows, among the `limit` next due rows.

    Of a destination; at most `top` keys, those with the most rows first. Parameters: destination, limit, top. Index:
    outboxkit_outbox_due, up to the parked rows. Locks: none.
    """
    ours = outbox.c.destination == bindparam("destination", type_=String)
    order = (outbox.c.due_at, outbox.c.position)
    first = select(outbox.c.key, outbox.c.held).where(ours, outbox.c.due_at < _PARKED).order_by(*order).limit(_LIMIT)
    rows, count = first.subquery("first"), func.count().label("rows")
    held = select(rows.c.key, count).where(rows.c.held, rows.c.key.is_not(None)).group_by(rows.c.key)
    return held.order_by(count.desc(), rows.c.key).limit(bindparam("top", type_=BigInteger))


def published_between(dialect: str) -> Select[Any]:
    """The first `limit` kept messages of a time: how many, when the last was published, and their mean lag in seconds.

    Parameters: since, until, limit. Index: the primary key, of each partition of that time. Locks: none.
    """
    at = published.c.published_at
    bounds = (at >= bindparam("since", type_=UtcDateTime), at < bindparam("until", type_=UtcDateTime))
    rows = select(at, published.c.created_at).where(*bounds).order_by(at, published.c.position).limit(_LIMIT)
    first = rows.subquery("first")
    lag = seconds_between(dialect, first.c.created_at, first.c.published_at)
    return select(func.count(), func.max(first.c.published_at), func.avg(lag))
