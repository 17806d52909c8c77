"""Statements for the checks of the broker: what the tables tell about it. Each reads a bounded part of a table."""

from typing import Any

from sqlalchemy import Integer, Select, String, bindparam, func, literal_column, select

from outboxkit.tables import dead_letter, outbox

_LIMIT = bindparam("limit", type_=Integer)


def oldest_by_route() -> Select[Any]:
    """The routing keys of the `limit` rows with the lowest positions, and how many rows have each.

    Of a destination, and without rows that need no queue or are for one alone. Parameters: destination, limit. Index:
    the primary key. Locks: none.
    """
    key = func.coalesce(outbox.c.topic, outbox.c.type).label("key")
    columns = (key, outbox.c.destination, outbox.c.queue, outbox.c.discard_unroutable)
    first = select(*columns).order_by(outbox.c.position).limit(_LIMIT).subquery("first")
    is_ours = first.c.destination == bindparam("destination", type_=String)
    routed = (is_ours, first.c.queue.is_(None), ~first.c.discard_unroutable)
    return select(first.c.key, func.count().label("rows")).where(*routed).group_by(first.c.key)


def newest_error() -> Select[str]:
    """The newest error with this `text` among the `limit` newest open dead letters.

    Parameters: limit, text. Index: outboxkit_dead_letter_open, from its end. Locks: none.
    """
    is_open = dead_letter.c.resolution.is_(None)
    newest = select(dead_letter.c.id, dead_letter.c.error).where(is_open).order_by(dead_letter.c.id.desc())
    first = newest.limit(_LIMIT).subquery("first")
    has_text = first.c.error.contains(bindparam("text", type_=String))
    return select(first.c.error).where(has_text).order_by(first.c.id.desc()).limit(literal_column("1"))
