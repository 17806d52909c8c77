"""Kept messages beside handled ones, in the order of their ids, for `outboxkit reconcile`."""

from typing import Any

from sqlalchemy import Boolean, ColumnElement, Select, String, bindparam, func, literal_column, select

from outboxkit.statements.dialects import among, by_bytes, digest
from outboxkit.tables import UtcDateTime, attempt, dead_letter, inbox, published, readable

_FIRST, _LAST = (
    bindparam("first_id", type_=inbox.c.message_id.type),
    bindparam("last_id", type_=inbox.c.message_id.type),
)
_HANDLERS = "handlers"


def whole_cursors() -> Select[Any]:
    """Plan this transaction's cursors for being read to their end. PostgreSQL only. Index: none. Locks: none."""
    settings = {"cursor_tuple_fraction": "1", "jit": "off"}
    return select(
        *(
            func.set_config(literal_column(f"'{name}'"), literal_column(f"'{value}'"), literal_column("true"))
            for name, value in settings.items()
        )
    )


def kept_messages(dialect: str) -> Select[Any]:
    """The number of kept messages of a period, the lowest and the highest id, and the times of the first and the last.

    Parameters: destination, types, any_type (whether all are meant), since, until. Index: the primary key, from `since`
    to `until`. Locks: none.
    """
    id_, at = by_bytes(dialect, published.c.message_id), published.c.published_at
    columns: list[Any] = [func.count(), func.min(id_), func.max(id_), func.min(at), func.max(at)]
    return select(*columns).where(*_of_period(dialect))


def kept_ids(dialect: str) -> Select[Any]:
    """The kept messages of a period in the order of their ids.

    Columns: id, type, queue, whether it may be in flight, and a digest of the payload.

    Parameters: destination, types, any_type (whether all are meant), since, until; in_flight: the time after which they
    may be. Index: the primary key, from `since` to `until`, and a sort of all rows by the server. Locks: none.
    """
    is_young = published.c.published_at > bindparam("in_flight", type_=UtcDateTime)
    row = (published.c.message_id, published.c.type, published.c.queue)
    columns = (*row, is_young.label("is_young"), digest(dialect, published.c.payload).label("digest"))
    order = (by_bytes(dialect, published.c.message_id), published.c.type, published.c.queue)
    return select(*columns).where(*_of_period(dialect)).order_by(*order)


def handled_ids(dialect: str) -> Select[Any]:
    """The ids of messages that these handlers have processed, and the handler, in the order of the ids.

    Parameters: handlers, first_id, last_id. Index: the primary key, of each partition between these ids, or a sort by
    the server. Locks: none.
    """
    ours = among(dialect, inbox.c.handler, _HANDLERS)
    columns = (inbox.c.message_id, inbox.c.handler)
    return select(*columns).where(ours, inbox.c.message_id.between(_FIRST, _LAST)).order_by(inbox.c.message_id)


def handled_types() -> Select[Any]:
    """The types that each handler has processed messages of, between these ids.

    Parameters: first_id, last_id. Index: none, it reads each row of the partitions between these ids. Locks: none.
    """
    pair = (inbox.c.handler, inbox.c.type)
    return select(*pair).where(inbox.c.message_id.between(_FIRST, _LAST)).distinct()


def letters_of(dialect: str) -> Select[Any]:
    """The dead letters of the inbox with one of these message ids, by handler, and how they were resolved.

    Parameters: ids. Index: outboxkit_dead_letter_message. Locks: none.
    """
    columns = (dead_letter.c.message_id, dead_letter.c.handler, dead_letter.c.resolution, dead_letter.c.resolved_at)
    of_inbox = dead_letter.c.side == literal_column("'inbox'")
    return select(*map(readable, columns)).where(of_inbox, among(dialect, dead_letter.c.message_id, "ids"))


def crashes_of(dialect: str) -> Select[Any]:
    """The queues of these that have a crash record of one of these messages.

    Parameters: queues, ids. Index: the primary key. Locks: none.
    """
    ours = (among(dialect, attempt.c.queue, "queues"), among(dialect, attempt.c.message_id, "ids"))
    return select(attempt.c.message_id, attempt.c.queue).where(*ours)


def _of_period(dialect: str) -> list[ColumnElement[bool]]:
    any_type = bindparam("any_type", type_=Boolean)
    return [
        published.c.destination == bindparam("destination", type_=String),
        published.c.published_at >= bindparam("since", type_=UtcDateTime),
        published.c.published_at < bindparam("until", type_=UtcDateTime),
        any_type | among(dialect, published.c.type, "types"),
    ]
