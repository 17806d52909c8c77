"""Statements that count, for `outboxkit status` and for the gauges.

They read a bounded part of a table, however many rows it has: the first ones of an index. They also walk over what
vacuum has not removed there yet.
"""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    Subquery,
    bindparam,
    func,
    literal_column,
    select,
    union,
)

from outboxkit.statements.dialects import set_locally
from outboxkit.tables import PARKED, attempt, dead_letter, effect, idempotency, inbox, outbox, published, readable

_LIMIT = bindparam("limit", type_=Integer)
_DESTINATION = bindparam("destination", type_=String)
_MOST = bindparam("most", type_=Integer)
_ROWS = func.count().label("rows")
_PARKED = bindparam("parked_until", PARKED, type_=outbox.c.due_at.type)


def forbid_sorting() -> Select[Any]:
    """Have this transaction read the first rows in an index's order, even if the planner expects few rows in all.

    Without statistics it would expect so of a table that was filled a moment ago, and read and sort all of it. And do
    not wait for longer than five seconds while a table is being altered. PostgreSQL only. Index: none. Locks: none.
    """
    return set_locally(**_READING)


def limit_reading() -> Select[Any]:
    """`forbid_sorting`, and have the server end each statement of this transaction after two seconds. PostgreSQL only.

    Index: none. Locks: none.
    """
    return set_locally(**_READING, statement_timeout="2s")


def destinations() -> Select[str]:
    """The destinations of rows in the outbox, and of up to `limit` parked dead letters; at most `most` of each kind.

    However many rows there are, it reads one for each destination. Parameters: most, limit. Indexes:
    outboxkit_outbox_ready, outboxkit_outbox_due and outboxkit_dead_letter_parked. Locks: none.
    """
    letters = _first(select(dead_letter.c.destination).where(dead_letter.c.parked), dead_letter.c.key)
    names = union(
        _each("ready", outbox.c.destination, outbox.c.due_at.is_(None)),
        _each("due", outbox.c.destination, outbox.c.due_at.is_not(None)),
        select(letters.c.destination),
    ).subquery("names")
    return select(names.c.value).order_by(names.c.value)


def ready() -> Select[int, Any]:
    """The number of rows of a destination that wait for nothing, up to `limit`, and when the oldest of them was made.

    Parameters: destination, limit. Index: outboxkit_outbox_ready. Locks: none.
    """
    # A range of one, and both columns in the order: for an equation the planner would take the primary key's order.
    ours = outbox.c.destination.between(_DESTINATION, _DESTINATION)
    rows = select(outbox.c.created_at).where(ours, outbox.c.due_at.is_(None))
    first = _first(rows, outbox.c.destination, outbox.c.position)
    return select(func.count(), func.min(first.c.created_at)).select_from(first)


def waiting() -> Select[Any]:
    """For held and for delayed rows: how many, the next time and the oldest creation, among the `limit` next due ones.

    Of a destination. Parameters: destination, limit. Index: outboxkit_outbox_due, up to the parked rows. Locks: none.
    """
    columns = (outbox.c.held, outbox.c.due_at, outbox.c.created_at)
    first = _first(_to_destination(*columns).where(outbox.c.due_at < _PARKED), outbox.c.due_at, outbox.c.position)
    earliest = (func.min(first.c.due_at), func.min(first.c.created_at))
    return select(first.c.held, func.count(), *earliest).group_by(first.c.held)


def overdue() -> Select[int, Any]:
    """The number of rows of a destination whose time has come, up to `limit`, and the first such time.

    Parameters: destination, limit, now. Index: outboxkit_outbox_due, up to `now`. Locks: none.
    """
    due = outbox.c.due_at <= bindparam("now", type_=outbox.c.due_at.type)
    rows = _to_destination(outbox.c.due_at, outbox.c.position).where(due)
    first = _first(rows, outbox.c.due_at, outbox.c.position)
    return select(func.count(), func.min(first.c.due_at)).select_from(first)


def furthest_due() -> Select[Any]:
    """The last due time of a destination's rows that wait for one. Parameters: destination.

    Index: outboxkit_outbox_due, from the parked rows downwards. Locks: none.
    """
    ours = _to_destination(outbox.c.due_at).where(outbox.c.due_at < _PARKED)
    last = ours.order_by(outbox.c.destination.desc(), outbox.c.due_at.desc()).limit(literal_column("1"))
    return select(last.scalar_subquery())


def count_waiting() -> Select[int, Any]:
    """The number of rows of a destination that wait for a time or their keys, up to `limit`, and the next such time.

    Parameters: destination, limit. Index: outboxkit_outbox_due alone, up to the parked rows. Locks: none.
    """
    ours = _to_destination(outbox.c.due_at, outbox.c.position).where(outbox.c.due_at < _PARKED)
    first = _first(ours, outbox.c.due_at, outbox.c.position)
    return select(func.count(), func.min(first.c.due_at)).select_from(first)


def parked() -> Select[Any]:
    """The number of rows of a destination that wait behind a parked dead letter, up to `limit`.

    Parameters: destination, limit. Index: outboxkit_outbox_due, its upper end. Locks: none.
    """
    return select(func.count()).select_from(_parked_rows())


def parked_keys() -> Select[Any]:
    """The keys with parked dead letters, those with the most waiting rows first; of all of them, keys and dead letters.

    Of a destination; of its waiting rows, and of the dead letters of all destinations, the first `limit` are counted.
    Parameters: destination, limit, top (how many keys). Indexes: outboxkit_outbox_due, its upper end, and
    outboxkit_dead_letter_parked. Locks: none.
    """
    rows = _parked_rows()
    behind = select(rows.c.key, func.count().label("rows")).group_by(rows.c.key).cte("behind")
    letters = _first(
        select(dead_letter.c.key, dead_letter.c.destination).where(dead_letter.c.parked), dead_letter.c.key
    )
    ours = select(letters.c.key, func.count().label("rows")).where(letters.c.destination == _DESTINATION)
    dead = ours.group_by(letters.c.key).cte("dead")
    waiting_rows = func.coalesce(behind.c.rows, literal_column("0", Integer))
    return (
        select(dead.c.key, waiting_rows, dead.c.rows, func.count().over(), func.sum(dead.c.rows).over())
        .select_from(dead.outerjoin(behind, behind.c.key == dead.c.key))
        .order_by(waiting_rows.desc(), dead.c.key)
        .limit(bindparam("top", type_=Integer))
    )


def count_parked_keys() -> Select[Any]:
    """The number of keys with a parked dead letter, among the first `limit` of these.

    Parameters: limit. Index: outboxkit_dead_letter_parked. Locks: none.
    """
    letters = _first(select(dead_letter.c.key).where(dead_letter.c.parked), dead_letter.c.key)
    return select(func.count()).select_from(select(letters.c.key).distinct().subquery("keys"))


def oldest_by_type() -> Select[Any]:
    """The `limit` rows with the lowest positions, by type; how many of them failed before.

    Parameters: limit. Index: the primary key. Locks: none.
    """
    first = _first(select(outbox.c.type, outbox.c.attempts), outbox.c.position)
    failed = func.count().filter(first.c.attempts > literal_column("0", Integer)).label("failed")
    return select(first.c.type, failed, _ROWS).group_by(first.c.type)


def dead_open() -> Select[Any]:
    """Open dead letters by side and reason, among the first `limit` of them.

    Parameters: limit. Index: outboxkit_dead_letter_open. Locks: none.
    """
    columns = (dead_letter.c.side, dead_letter.c.reason)
    first = _first(select(*columns).where(dead_letter.c.resolution.is_(None)), dead_letter.c.dead_at, dead_letter.c.id)
    by = (first.c.side, first.c.reason)
    return select(*by, _ROWS).group_by(*by).order_by(*by)


def failing() -> Select[Any]:
    """Types whose messages wait for a retry: type, rows, the most attempts and one error, of the `limit` next due rows.

    Of a destination. Parameters: destination, limit. Index: outboxkit_outbox_due, up to the parked rows. Locks: none.
    """
    columns = (outbox.c.type, outbox.c.attempts, outbox.c.last_error)
    first = _first(_to_destination(*columns).where(outbox.c.due_at < _PARKED), outbox.c.due_at, outbox.c.position)
    most = (func.max(first.c.attempts).label("attempts"), func.max(first.c.last_error).label("last_error"))
    failed = select(first.c.type, _ROWS, *most).where(first.c.last_error.is_not(None))
    return failed.group_by(first.c.type).order_by(first.c.type)


def retried() -> Select[Any]:
    """Messages that failed twice and are tried again, by queue, handler and error; of the first `limit` rows.

    Those with the most messages first. Parameters: limit. Index: none; consumers keep the table small. Locks: none.
    """
    columns = ("queue", "handler", "error", "type", "attempt", "next_at", "message_id")
    rows = select(*(readable(attempt.c[name]) for name in columns)).where(attempt.c.error.is_not(None))
    first = _first(rows, attempt.c.queue, attempt.c.message_id)
    by = (first.c.queue, first.c.handler, first.c.error)
    some = {"type": func.min(first.c.type), "attempt": func.max(first.c.attempt), "next_at": func.min(first.c.next_at)}
    some["message_id"] = func.min(first.c.message_id)
    columns_of = (*by, *(value.label(name) for name, value in some.items()), _ROWS)
    return select(*columns_of).group_by(*by).order_by(_ROWS.desc(), *by).limit(_MOST)


def dead_resolved() -> Select[int, int]:
    """The numbers of resolved dead letters and of all, among the `limit` with the lowest ids.

    Parameters: limit. Index: the primary key. Locks: none.
    """
    first = _first(select(dead_letter.c.resolution), dead_letter.c.id)
    return select(func.count(first.c.resolution), func.count()).select_from(first)


def handlers() -> Select[str]:
    """The names of handlers in the inbox, at most `most`.

    However many rows there are, it reads one for each name. Parameters: most. Index: the primary key, of each
    partition. Locks: none.
    """
    return _each("handlers", inbox.c.handler)


def queues_with_crashes() -> Select[str]:
    """The queues of crash records, an index scan for each. Parameters: most. Index: the primary key. Locks: none."""
    return _each("queues", attempt.c.queue)


def count_processed() -> Select[int]:
    """The number of messages that a handler has processed, up to `limit`.

    Parameters: handler, limit. Index: the primary key, of each partition. Locks: none.
    """
    ours = select(inbox.c.message_id).where(inbox.c.handler == bindparam("handler", type_=String))
    return _count(ours, inbox.c.message_id)


def count_published() -> Select[int]:
    """The number of published messages that are kept, up to `limit`.

    Parameters: limit. Index: the primary key, of each partition. Locks: none.
    """
    return _count(select(published.c.position), published.c.published_at, published.c.position)


def count_remembered() -> Select[int]:
    """The number of requests with an idempotency key that are remembered, up to `limit`.

    Parameters: limit. Index: outboxkit_idempotency_expires. Locks: none.
    """
    return _count(select(idempotency.c.expires_at), idempotency.c.expires_at)


def unknown_effects() -> Select[Any]:
    """The number of effects that were started and have neither an end nor a lease any more, up to `limit`.

    Parameters: limit, now. Index: outboxkit_effect_open. Locks: none.
    """
    is_open = effect.c.state == literal_column("'started'")
    over = effect.c.locked_until < bindparam("now", type_=effect.c.locked_until.type)
    return _count(select(effect.c.key).where(is_open, over), effect.c.locked_until)


def oldest_published() -> Select[Any]:
    """When the oldest message that is kept was published. Index: the primary key, of each partition. Locks: none."""
    return select(func.min(published.c.published_at))


_READING = dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"), "off") | {"lock_timeout": "5s"}


def _first(query: Select[Any], *order: Any) -> Subquery:
    """The order keeps the planner on the index: without it a limit over most of a table is read from its start."""
    return query.order_by(*order).limit(_LIMIT).subquery("first")


def _count(query: Select[Any], *order: Any) -> Select[int]:
    return select(func.count()).select_from(_first(query, *order))


def _parked_rows() -> Subquery:
    # No row is due later; but by the position alone the planner would take the primary key's order.
    return _first(_to_destination(outbox.c.key).where(outbox.c.due_at >= _PARKED), outbox.c.due_at, outbox.c.position)


def _to_destination(*columns: Any) -> Select[Any]:
    return select(*columns).where(outbox.c.destination == _DESTINATION)


def _each(name: str, values: ColumnElement[str], *where: ColumnElement[bool]) -> Select[str]:
    """The different values of a column, by one index scan for each: the next one behind the last."""
    # Not min(): if the planner expects few rows, it reads all of them.
    lowest = select(values).where(*where).order_by(values).limit(literal_column("1"))
    one = literal_column("1", Integer)
    seen = select(lowest.scalar_subquery().label("value"), one.label("number")).cte(name, recursive=True)
    behind = lowest.where(values > seen.c.value)
    following = select(behind.correlate(seen).scalar_subquery(), seen.c.number + one).where(
        seen.c.value.is_not(None), seen.c.number < _MOST
    )
    each = seen.union_all(following)
    return select(each.c.value).where(each.c.value.is_not(None))
