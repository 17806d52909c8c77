"""The rows that tell of a message, for `outboxkit trace`.

No index has the ids of ready and of published messages, nor correlation and causation ids: one would cost each insert
(`docs/decisions/0008`). Of such a table one window is read, in the order of its primary key.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    String,
    Table,
    TextClause,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
)

from outboxkit.statements.dialects import among, digest
from outboxkit.tables import PARKED, UtcDateTime, attempt, dead_letter, inbox, outbox, published, readable, ready_place

_OF_MESSAGE = (
    *("message_id", "type", "key", "headers", "correlation_id", "causation_id", "created_at"),
    *("queue", "destination"),
)
_OF_OUTBOX = ("position", "due_at", "held", "attempts", "last_error", "first_failed_at", "expires_at")
_OF_PUBLISHED = ("published_at", "position")
_OF_DEAD = (
    *("id", "side", "handler", "reason", "error", "attempts", "dead_at", "position", "parked", "first_failed_at"),
    *("resolution", "resolved_at", "resolved_by"),
)
_LIMIT = bindparam("limit", type_=BigInteger)
_WINDOW = bindparam("window", type_=BigInteger)
_KEY = bindparam("key", type_=String)
_DESTINATION = bindparam("destination", type_=String)
_POSITION = bindparam("position", type_=BigInteger)
_PARKED = bindparam("parked_until", PARKED, type_=UtcDateTime)
_ONE = literal_column("1", Integer)


def _columns(table: Table, *groups: Sequence[str]) -> list[ColumnElement[Any]]:
    return [readable(table.c[name]) for names in groups for name in names]


def _waiting(dialect: str) -> Select[Any]:
    return select(*_columns(outbox, _OF_MESSAGE, _OF_OUTBOX), digest(dialect, outbox.c.payload).label("digest"))


def delayed(dialect: str) -> Select[Any]:
    """Rows of the outbox with one of these ids that have a due time: delayed, held and parked ones.

    Parameters: ids, limit. Index: outboxkit_outbox_delayed. Locks: none.
    """
    ours = (outbox.c.due_at.is_not(None), among(dialect, outbox.c.message_id, "ids"))
    return _waiting(dialect).where(*ours).limit(_LIMIT)


def deduplicated(dialect: str) -> Select[Any]:
    """Rows of the outbox with one of these ids that were added with `dedup`.

    Parameters: ids, limit. Index: outboxkit_outbox_dedup. Locks: none.
    """
    ours = (outbox.c.dedup, among(dialect, outbox.c.message_id, "ids"))
    return _waiting(dialect).where(*ours).limit(_LIMIT)


def ready_of_key(dialect: str) -> Select[Any]:
    """Ready rows of a key, by destination and position.

    Parameters: key, limit. Index: outboxkit_outbox_key. Locks: none.
    """
    ours = (outbox.c.key == _KEY, outbox.c.due_at.is_(None))
    return _waiting(dialect).where(*ours).order_by(outbox.c.destination, ready_place).limit(_LIMIT)


def held_of_key(dialect: str) -> Select[Any]:
    """Held and parked rows of a key, by destination and position.

    Parameters: key, limit. Index: outboxkit_outbox_held. Locks: none.
    """
    ours = (outbox.c.key == _KEY, outbox.c.held)
    order = (outbox.c.destination, outbox.c.position)
    return _waiting(dialect).where(*ours).order_by(*order).limit(_LIMIT)


def dead(dialect: str) -> Select[Any]:
    """Dead letters with one of these message ids, without payloads.

    Parameters: ids, limit. Index: outboxkit_dead_letter_message. Locks: none.
    """
    ours = among(dialect, dead_letter.c.message_id, "ids")
    return select(*_columns(dead_letter, _OF_MESSAGE, _OF_DEAD)).where(ours).limit(_LIMIT)


def parked_of_key() -> Select[Any]:
    """Dead letters that park a key. Parameters: key, limit. Index: outboxkit_dead_letter_parked. Locks: none."""
    ours = (dead_letter.c.key == _KEY, dead_letter.c.parked)
    return select(*_columns(dead_letter, _OF_MESSAGE, _OF_DEAD)).where(*ours).limit(_LIMIT)


def handled(dialect: str) -> Select[Any]:
    """Rows of the inbox with one of these ids, of these handlers.

    Parameters: handlers, ids, limit. Index: the primary key, of each partition that the ids can be in. Locks: none.
    """
    ours = (among(dialect, inbox.c.handler, "handlers"), among(dialect, inbox.c.message_id, "ids"))
    return select(*inbox.columns).where(*ours).limit(_LIMIT)


def crashes(dialect: str) -> Select[Any]:
    """Crash records of these messages in these queues.

    Parameters: queues, ids, limit. Index: the primary key. Locks: none.
    """
    ours = (among(dialect, attempt.c.queue, "queues"), among(dialect, attempt.c.message_id, "ids"))
    return select(*attempt.columns).where(*ours).limit(_LIMIT)


def retried_of_key() -> Select[Any]:
    """Messages of a key that are tried again. Parameters: key, limit.

    Index: none; consumers keep the table small. Locks: none.
    """
    return select(*attempt.columns).where(attempt.c.key == _KEY).limit(_LIMIT)


def first_ready_before() -> Select[Any]:
    """The first ready row of a key of a destination below a position.

    Parameters: key, destination, position. Index: outboxkit_outbox_key. Locks: none.
    """
    return _first_before(outbox.c.due_at.is_(None), ready_place)


def first_held_before() -> Select[Any]:
    """The first held or parked row of a key of a destination below a position.

    Parameters: key, destination, position. Index: outboxkit_outbox_held. Locks: none.
    """
    return _first_before(outbox.c.held, outbox.c.position)


def _first_before(state: ColumnElement[bool], place: ColumnElement[int]) -> Select[Any]:
    columns = (outbox.c.message_id, *(outbox.c[name] for name in _OF_OUTBOX[:5]))
    # A range of one key, and the key in the order: otherwise the planner may take the index of ready rows.
    of_key = outbox.c.key.between(_KEY, _KEY)
    earlier = (of_key, outbox.c.destination == _DESTINATION, place < _POSITION)
    order = (outbox.c.key, outbox.c.destination, place)
    return select(*map(readable, columns)).where(*earlier, state).order_by(*order).limit(_ONE)


def parking() -> Select[Any]:
    """The first dead letter that parks a key of a destination for rows below it.

    Parameters: key, destination, position. Index: outboxkit_dead_letter_parked. Locks: none.
    """
    columns = (dead_letter.c.id, dead_letter.c.message_id, dead_letter.c.reason, dead_letter.c.error)
    earlier = (dead_letter.c.destination == _DESTINATION, dead_letter.c.position < _POSITION)
    order = (dead_letter.c.key, dead_letter.c.position)
    return (
        select(*columns).where(dead_letter.c.key == _KEY, dead_letter.c.parked, *earlier).order_by(*order).limit(_ONE)
    )


def count_ahead() -> Select[int]:
    """The number of ready rows of a destination below a position, up to `limit`.

    Parameters: destination, position, limit. Index: outboxkit_outbox_ready. Locks: none.
    """
    ours = outbox.c.destination.between(_DESTINATION, _DESTINATION)
    order = (outbox.c.destination, outbox.c.position)
    ahead = select(outbox.c.position).where(ours, outbox.c.due_at.is_(None), outbox.c.position < _POSITION)
    return select(func.count()).select_from(ahead.order_by(*order).limit(_LIMIT).subquery("ahead"))


_LOCKS = text("""
SELECT o.position, l.pid, a.application_name AS name, a.xact_start AS since
FROM outboxkit_outbox o
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = o.xmax AND l.granted
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE o.position = ANY(:positions)
""")


def row_locks() -> TextClause:
    """The sessions that have locked these rows of the outbox, as a relay does with those that it publishes.

    It takes no lock itself: the row names the transaction. PostgreSQL only. Parameters: positions. Index: the primary
    key. Locks: none.
    """
    return _LOCKS


_FEW = literal_column("100", Integer)


def first_added() -> Select[Any]:
    """The next 100 rows of the outbox from a position on, with the times at which they were added.

    Parameters: position. Index: the primary key. Locks: none.
    """
    row = (readable(outbox.c.created_at), outbox.c.due_at, outbox.c.held)
    return select(*row).where(outbox.c.position >= _POSITION).order_by(outbox.c.position).limit(_FEW)


def ends() -> Select[Any]:
    """The lowest and the highest position of the outbox, null if it is empty. Index: the primary key. Locks: none."""
    return select(*(select(end(outbox.c.position)).scalar_subquery() for end in (func.min, func.max)))


def outbox_window(dialect: str) -> Select[Any]:
    """Rows of the outbox that match, among the next `window` ones from a position on; and the last of a full window.

    Parameters: position, window, limit, and those of a match: message_id, causation_id, correlation_id, key. Index: the
    primary key. Locks: none.
    """
    columns = [*_columns(outbox, _OF_MESSAGE, _OF_OUTBOX), outbox.c.payload]
    return _window(dialect, columns, outbox.c.position >= _POSITION, [outbox.c.position])


def published_window(dialect: str, *, newest_first: bool) -> Select[Any]:
    """Kept messages that match, among the next `window` ones from a moment on; and the last of a full window.

    Parameters: at, window, limit, and those of a match. Index: the primary key, of each partition from there on. Locks:
    none.
    """
    order, at = (published.c.published_at, published.c.position), bindparam("at", type_=UtcDateTime)
    columns = [*_columns(published, _OF_MESSAGE, _OF_PUBLISHED), published.c.payload]
    if newest_first:
        return _window(dialect, columns, order[0] < at, [each.desc() for each in order])
    return _window(dialect, columns, order[0] >= at, list(order))


def dead_window(dialect: str) -> Select[Any]:
    """Dead letters that match, among the newest `window` ones; and the last of a full window.

    Parameters: window, limit, and those of a match. Index: the primary key, from its end. Locks: none.
    """
    columns = [*_columns(dead_letter, _OF_MESSAGE, _OF_DEAD), dead_letter.c.payload]
    return _window(dialect, columns, true(), [dead_letter.c.id.desc()])


def _window(dialect: str, columns: list[Any], start: ColumnElement[bool], order: list[Any]) -> Select[Any]:
    """Read in the order of an index, row by row: the number of a row tells whether the window is full."""
    number = func.row_number().over(order_by=order).label("number")
    rows = select(*columns, number).where(start).order_by(*order).limit(_WINDOW).subquery("rows_read")
    names = ("message_id", "causation_id", "correlation_id", "key")
    is_match = or_(*(rows.c[name] == bindparam(name, type_=String) for name in names))
    shown = [each for each in rows.c if each.name != "payload"]
    result = select(*shown, digest(dialect, rows.c.payload).label("digest"), is_match.label("is_match"))
    return result.where(or_(is_match, rows.c.number == _WINDOW)).limit(_LIMIT)
