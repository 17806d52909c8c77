"""Kept messages: their rows, a page at a time, and what may still be adding some."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from outboxkit.codec.rows import COLUMNS
from outboxkit.statements.dialects import (
    IN_THIS_DATABASE,
    LOCKS,
    among,
    lists,
)
from outboxkit.statements.partitions import PUBLISHED
from outboxkit.tables import UtcDateTime, outbox, published

KEPT_COLUMNS = (published.c.published_at, published.c.position, *(published.c[name] for name in COLUMNS))
"""The columns of a kept row that a replay reads. It is for one queue, so it needs no reply."""


def keep_partitions() -> Select[Any]:
    """Keep partitions from being changed until the transaction ends, so that no row moves in the middle of a page.

    PostgreSQL only. Locks: the advisory lock of `partitions.lock_partitions`, shared.
    """
    return select(func.pg_advisory_xact_lock_shared(PUBLISHED.lock))


def settling() -> Select[Any]:
    """The transactions of relays that have claimed rows or are keeping them now: virtual transaction ids.

    Rows that they keep are dated before their commit. PostgreSQL only. Index: none, it reads pg_locks. Locks: none on
    tables.
    """
    ways = [(outbox, "RowShareLock"), (published, "RowExclusiveLock")]
    held = (
        and_(
            LOCKS.c.relation == func.to_regclass(literal_column(f"'{one.name}'")),
            LOCKS.c.mode == literal_column(f"'{mode}'"),
        )
        for one, mode in ways
    )
    return select(LOCKS.c.virtualtransaction).where(
        LOCKS.c.locktype == literal_column("'relation'"),
        IN_THIS_DATABASE,
        or_(*held),
        LOCKS.c.pid.is_distinct_from(func.pg_backend_pid()),
    )


def count_kept(*, type_: str | None, key: str | None) -> Select[int, Any, Any]:
    """The number of kept rows that a replay would publish, and the times of the first and the last one.

    Parameters: destination, since, until. Index: the primary key, from `since` to `until`. Locks: none.
    """
    at = published.c.published_at
    return select(func.count(), func.min(at), func.max(at)).where(*_conditions(type_, key))


def end_of_kept() -> Select[Any]:
    """The time of the `window`-th kept row, from the first one on; none if there are fewer.

    Parameters: since, until, window. Index: the primary key of each partition. Locks: none.
    """
    at, since = published.c.published_at, bindparam("since", type_=UtcDateTime)
    rows = select(at).where(at >= since, at < bindparam("until", type_=UtcDateTime)).order_by(at, published.c.position)
    return rows.offset(bindparam("window", type_=BigInteger) - literal_column("1")).limit(literal_column("1"))


def kept_page(*, type_: str | None, key: str | None) -> Select[Any]:
    """The next kept rows of a destination behind a row, in the order of their publishing: by key in position order.

    Parameters: destination, since, until; after_at and after_position: the row; limit. Index: the primary key of each
    partition from there on. Locks: none.
    """
    order = (published.c.published_at, published.c.position)
    after = (bindparam("after_at", type_=UtcDateTime), bindparam("after_position", type_=BigInteger))
    return (
        select(*KEPT_COLUMNS)
        .where(*_conditions(type_, key), published.c.published_at >= after[0], tuple_(*order) > tuple_(*after))
        .order_by(*order)
        .limit(bindparam("limit", type_=BigInteger))
    )


def kept_places(dialect: str, *, type_: str | None, key: str | None) -> Select[Any]:
    """The time, the position and the id of each kept row of a destination with one of these ids.

    Parameters: destination, since, until, ids. Index: the primary key, from `since` to `until`. Locks: none.
    """
    columns = (published.c.published_at, published.c.position, published.c.message_id)
    asked = lists(dialect, {"ids": published.c.message_id.type})
    return select(*columns).where(*_conditions(type_, key), published.c.message_id == asked.c["ids"], *asked.where)


def kept_rows(dialect: str) -> Select[Any]:
    """The kept rows at these positions, published in a period, in the order of `kept_page`.

    Parameters: first_at, last_at (both are part of it), positions. Index: the primary key, from `first_at` to
    `last_at`. Locks: none.
    """
    at = published.c.published_at
    first, last = (bindparam(name, type_=UtcDateTime) for name in ("first_at", "last_at"))
    ours = (at.between(first, last), among(dialect, published.c.position, "positions"))
    return select(*KEPT_COLUMNS).where(*ours).order_by(at, published.c.position)


def _conditions(type_: str | None, key: str | None) -> list[ColumnElement[bool]]:
    """The conditions of a replay's rows. `since` is part of the range, `until` is not."""
    conditions = [
        published.c.destination == bindparam("destination", type_=published.c.destination.type),
        published.c.published_at >= bindparam("since", type_=UtcDateTime),
        published.c.published_at < bindparam("until", type_=UtcDateTime),
    ]
    conditions += [published.c.type == type_] if type_ is not None else []
    conditions += [published.c.key == key] if key is not None else []
    return conditions
