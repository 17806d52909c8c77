"""The rows that tell the life of a message, for `outboxkit trace`.

No index has the ids of ready and of published messages, nor correlation and causation ids: one would cost each insert
(`docs/decisions/0008`). A search reads such a table in pages, in the order of its primary key.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
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
    tuple_,
)

from outboxkit.statements.dialects import among, digest, lists
from outboxkit.tables import PARKED, UtcDateTime, attempt, dead_letter, handler, inbox, outbox, published, readable

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
_PAGE, _MOST = bindparam("page", type_=BigInteger), bindparam("most", type_=BigInteger)
_KEY = bindparam("key", type_=String)
_DESTINATION = bindparam("destination", type_=String)
_POSITION = bindparam("position", type_=BigInteger)
_PARKED = bindparam("parked_until", PARKED, type_=UtcDateTime)
_ONE = literal_column("1", Integer)


def _columns(table: Table, *groups: Sequence[str]) -> list[ColumnElement[Any]]:
    return [readable(table.c[name]) for names in groups for name in names]


def delayed(dialect: str) -> Select[Any]:
    """Rows of the outbox with one of these ids that have a due time: delayed, held and parked ones.

    Parameters: ids, limit. Index: outboxkit_outbox_delayed. Locks: none.
    """
    ours = (outbox.c.due_at.is_not(None), among(dialect, outbox.c.message_id, "ids"))
    return select(*_columns(outbox, _OF_MESSAGE, _OF_OUTBOX)).where(*ours).limit(_LIMIT)


def deduplicated(dialect: str) -> Select[Any]:
    """Rows of the outbox with one of these ids that were added with `dedup`.

    Parameters: ids, limit. Index: outboxkit_outbox_dedup. Locks: none.
    """
    ours = (outbox.c.dedup, among(dialect, outbox.c.message_id, "ids"))
    return select(*_columns(outbox, _OF_MESSAGE, _OF_OUTBOX)).where(*ours).limit(_LIMIT)


def ready_of_key() -> Select[Any]:
    """Ready rows of a key, by destination and position.

    Parameters: key, limit. Index: outboxkit_outbox_key. Locks: none.
    """
    ours = (outbox.c.key == _KEY, outbox.c.due_at.is_(None))
    order = (outbox.c.destination, outbox.c.position)
    return select(*_columns(outbox, _OF_MESSAGE, _OF_OUTBOX)).where(*ours).order_by(*order).limit(_LIMIT)


def held_of_key() -> Select[Any]:
    """Held and parked rows of a key, by destination and position.

    Parameters: key, limit. Index: outboxkit_outbox_held. Locks: none.
    """
    ours = (outbox.c.key == _KEY, outbox.c.held)
    order = (outbox.c.destination, outbox.c.position)
    return select(*_columns(outbox, _OF_MESSAGE, _OF_OUTBOX)).where(*ours).order_by(*order).limit(_LIMIT)


def dead(dialect: str) -> Select[Any]:
    """Dead letters with one of these message ids, the oldest first, without payloads.

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


def registered() -> Select[Any]:
    """The handlers of each queue's consumer, with the types that they handle, at most `limit`.

    Parameters: limit. Index: the primary key; the table has a row for each queue and handler. Locks: none.
    """
    names = ("handler", "queue", "types", "last_seen", "first_seen", "retention")
    columns = [handler.c[name] for name in names]
    return select(*columns).order_by(handler.c.handler, handler.c.queue).limit(_LIMIT)


def first_ready_before() -> Select[Any]:
    """The first ready row of a key of a destination below a position.

    Parameters: key, destination, position. Index: outboxkit_outbox_key. Locks: none.
    """
    return _first_before(outbox.c.due_at.is_(None))


def first_held_before() -> Select[Any]:
    """The first held or parked row of a key of a destination below a position.

    Parameters: key, destination, position. Index: outboxkit_outbox_held. Locks: none.
    """
    return _first_before(outbox.c.held)


def _first_before(state: ColumnElement[bool]) -> Select[Any]:
    columns = (outbox.c.message_id, *(outbox.c[name] for name in _OF_OUTBOX[:5]))
    earlier = (outbox.c.key == _KEY, outbox.c.destination == _DESTINATION, outbox.c.position < _POSITION)
    # The destination in the order: for the position alone the planner would take the primary key.
    order = (outbox.c.key, outbox.c.destination, outbox.c.position)
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
    row = (outbox.c.position, readable(outbox.c.created_at), outbox.c.due_at, outbox.c.held)
    return select(*row).where(outbox.c.position >= _POSITION).order_by(outbox.c.position).limit(_FEW)


def ends() -> Select[Any]:
    """The lowest and the highest position of the outbox, null if it is empty. Index: the primary key. Locks: none."""
    return select(*(select(end(outbox.c.position)).scalar_subquery() for end in (func.min, func.max)))


def digests_waiting(dialect: str) -> Select[Any]:
    """The position, and the payload's digest, of these rows of the outbox.

    Parameters: positions. Index: the primary key. Locks: none.
    """
    ours = among(dialect, outbox.c.position, "positions")
    return select(outbox.c.position, digest(dialect, outbox.c.payload)).where(ours)


def digests_kept(dialect: str) -> Select[Any]:
    """The time, the position and the payload's digest of these kept messages.

    Parameters: positions, ats (when each was published). Index: the primary key. Locks: none.
    """
    source = lists(dialect, {"positions": BigInteger(), "ats": UtcDateTime()})
    rows = source.select(source.c["positions"], source.c["ats"]).subquery("wanted")
    positions, ats = rows.c
    row = (published.c.published_at == ats) & (published.c.position == positions)
    columns = (published.c.published_at, published.c.position, digest(dialect, published.c.payload))
    return select(*columns).join_from(rows, published, row)


def outbox_page(dialect: str, *, newest_first: bool) -> Select[Any]:
    """Rows of the outbox that match, among the next `page` ones behind a position; and the last of a full page.

    Parameters: after_position, page, most (of the rows that match), and those of the match: ids, stories, key. Index:
    the primary key. Locks: none.
    """
    position, after = outbox.c.position, bindparam("after_position", type_=BigInteger)
    if newest_first:
        return _page(dialect, outbox, (_OF_MESSAGE, _OF_OUTBOX), position < after, [position.desc()])
    return _page(dialect, outbox, (_OF_MESSAGE, _OF_OUTBOX), position > after, [position])


def published_page(dialect: str, *, newest_first: bool) -> Select[Any]:
    """Kept messages that match, among the next `page` ones behind a row; and the last of a full page.

    Parameters: after_at and after_position (the row), page, most, and those of the match: ids, stories, key. Index: the
    primary key, of each partition from there on. Locks: none.
    """
    order = (published.c.published_at, published.c.position)
    at, position = bindparam("after_at", type_=UtcDateTime), bindparam("after_position", type_=BigInteger)
    pair = tuple_(at, position)
    if newest_first:
        beyond = (order[0] <= at) & (tuple_(*order) < pair)
        return _page(dialect, published, (_OF_MESSAGE, _OF_PUBLISHED), beyond, [each.desc() for each in order])
    beyond = (order[0] >= at) & (tuple_(*order) > pair)
    return _page(dialect, published, (_OF_MESSAGE, _OF_PUBLISHED), beyond, list(order))


def dead_page(dialect: str) -> Select[Any]:
    """Dead letters that match, among the next `page` ones below a number; and the last of a full page.

    Parameters: after_id, page, most, and those of the match: ids, stories, key. Index: the primary key, from its end.
    Locks: none.
    """
    beyond = dead_letter.c.id < bindparam("after_id", type_=BigInteger)
    return _page(dialect, dead_letter, (_OF_MESSAGE, _OF_DEAD), beyond, [dead_letter.c.id.desc()])


def _page(
    dialect: str, table: Table, groups: tuple[Sequence[str], ...], beyond: ColumnElement[bool], order: list[Any]
) -> Select[Any]:
    """Read in the order of an index, row by row: the number of a row tells whether the page is full."""
    number = func.row_number().over(order_by=order).label("number")
    rows = select(*_columns(table, *groups), number).where(beyond).order_by(*order).limit(_PAGE).subquery("page")
    is_match = _match(dialect, rows.c)
    return select(rows, is_match.label("is_match")).where(or_(is_match, rows.c.number == _PAGE)).limit(_MOST)


def _match(dialect: str, columns: Any) -> ColumnElement[bool]:
    of_ids: list[Column[Any]] = [columns.message_id, columns.causation_id]
    return or_(
        *(among(dialect, each, "ids") for each in of_ids),
        among(dialect, columns.correlation_id, "stories"),
        columns.key == _KEY,
    )
