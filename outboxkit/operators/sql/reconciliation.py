"""Kept messages beside handled ones, for `outboxkit reconcile`."""

from typing import Any

from sqlalchemy import Boolean, ColumnElement, Select, String, bindparam, func, literal_column, select, true

from outboxkit.statements.dialects import among, by_bytes, digest, has_one_writer, lists, set_locally
from outboxkit.tables import UtcDateTime, dead_letter, inbox, outbox, published, readable

_FIRST, _LAST = (
    bindparam("first_id", type_=inbox.c.message_id.type),
    bindparam("last_id", type_=inbox.c.message_id.type),
)


def whole_cursors() -> Select[Any]:
    """Plan this transaction's cursors for being read to their end. PostgreSQL only. Index: none. Locks: none."""
    return set_locally(cursor_tuple_fraction="1", jit="off")


def kept_messages(dialect: str) -> Select[Any]:
    """The number of kept messages of a period, the lowest and the highest id, and the times of the first and the last.

    Parameters: destination, types, any_type (whether all are meant), since, until. Index: the primary key, from `since`
    to `until`. Locks: none.
    """
    id_, at = by_bytes(dialect, published.c.message_id), published.c.published_at
    columns: list[Any] = [func.count(), func.min(id_), func.max(id_), func.min(at), func.max(at)]
    return select(*columns).where(*_of_period(dialect))


def kept_ids(dialect: str) -> Select[Any]:
    """The kept messages of a period, each once.

    Columns: id, type, queue, whether it may be in flight, and the number of times that it was published.

    Parameters: destination, types, any_type (whether all are meant), since, until; in_flight: the time after which they
    may be. Index: the primary key, from `since` to `until`; the server groups all rows. Locks: none.
    """
    row = (published.c.message_id, published.c.type, published.c.queue)
    is_young = func.max(published.c.published_at) > bindparam("in_flight", type_=UtcDateTime)
    return select(*row, is_young.label("is_young"), func.count()).where(*_of_period(dialect)).group_by(*row)


def ambiguous_ids(dialect: str) -> Select[Any]:
    """The ids of kept messages of a period that were published with different payloads, and how often.

    Parameters: destination, types, any_type (whether all are meant), since, until. Index: the primary key, from `since`
    to `until`; the server groups all rows. Locks: none.
    """
    id_, payload = published.c.message_id, digest(dialect, published.c.payload)
    repeated = select(id_).where(*_of_period(dialect)).group_by(id_).having(func.count() > literal_column("1"))
    differ = func.min(payload) < func.max(payload)
    return select(id_, func.count()).where(*_of_period(dialect), id_.in_(repeated)).group_by(id_).having(differ)


def handled_ids(dialect: str) -> Select[Any]:
    """Those of these messages that a handler has processed.

    Parameters: handler, ids. Index: the primary key, of the partitions that may have these ids. Locks: none.
    """
    # Joined, since the planner looks at each value of an array in an equation.
    asked = lists(dialect, {"ids": inbox.c.message_id.type})
    of_handler = inbox.c.handler == bindparam("handler", type_=inbox.c.handler.type)
    handled = select(inbox.c.message_id).where(of_handler, inbox.c.message_id == asked.c["ids"], *asked.where)
    if has_one_writer(dialect):
        return handled
    one = handled.limit(literal_column("1")).lateral("handled")  # by the index, also where the planner expects few rows
    return select(one.c.message_id).select_from(asked.c["ids"].table).join(one, true())


def handled_types() -> Select[Any]:
    """The types that each handler has processed messages of, between these ids.

    Parameters: first_id, last_id. Index: none, it reads each row of the partitions between these ids. Locks: none.
    """
    pair = (inbox.c.handler, inbox.c.type)
    return select(*pair).where(inbox.c.message_id.between(_FIRST, _LAST)).distinct()


def letters_of(dialect: str) -> Select[Any]:
    """The dead letters of the inbox with one of these message ids, by queue and handler, and how they were resolved.

    Parameters: ids. Index: outboxkit_dead_letter_message. Locks: none.
    """
    columns = (dead_letter.c[name] for name in ("message_id", "queue", "handler", "resolution", "resolved_at"))
    of_inbox = dead_letter.c.side == literal_column("'inbox'")
    return select(*map(readable, columns)).where(of_inbox, among(dialect, dead_letter.c.message_id, "ids"))


def back_in_outbox(dialect: str) -> Select[Any]:
    """Those of these messages that are in the outbox. Parameters: ids. Index: none, it reads all rows. Locks: none."""
    return select(outbox.c.message_id).where(among(dialect, outbox.c.message_id, "ids"))


def _of_period(dialect: str) -> list[ColumnElement[bool]]:
    any_type = bindparam("any_type", type_=Boolean)
    return [
        published.c.destination == bindparam("destination", type_=String),
        published.c.published_at >= bindparam("since", type_=UtcDateTime),
        published.c.published_at < bindparam("until", type_=UtcDateTime),
        any_type | among(dialect, published.c.type, "types"),
    ]
