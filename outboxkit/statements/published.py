"""Published messages that are kept: their partitions, a day each on PostgreSQL, and reading them again."""

import re
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    ColumnElement,
    Delete,
    Select,
    TextClause,
    bindparam,
    column,
    delete,
    func,
    select,
    table,
    text,
    tuple_,
    type_coerce,
)

from outboxkit.tables import UtcDateTime, published

DEFAULT = f"{published.name}_default"
"""The partition of rows whose day has none of its own."""
LOCK = 0x6F75_7462_7075
"""Of an advisory lock, "outbpu": exclusive for who makes or drops partitions, shared for who reads page by page."""
LOCK_MILLISECONDS = 500
"""How long partitions may wait for a lock, and make a relay wait behind them."""

KEPT = (
    published.c.published_at,
    published.c.position,
    published.c.message_id,
    published.c.type,
    published.c.payload,
    published.c.key,
    published.c.topic,
    published.c.headers,
    published.c.correlation_id,
    published.c.causation_id,
    published.c.created_at,
    published.c.content_type,
    published.c.content_encoding,
)
"""The columns of a kept row, in the order in which `outboxkit.replay` reads them."""

_NAME = re.compile(rf"{published.name}_(\d{{4}})(\d\d)(\d\d)")
_COLUMNS = ", ".join(f'"{found.name}"' for found in published.columns)


def partition_of(day: date) -> str:
    """The name of a day's partition."""
    return f"{published.name}_{day.year:04}{day.month:02}{day.day:02}"


def day_of(partition: str) -> date | None:
    """The day of a partition, by its name; None where outboxkit has not made it."""
    found = _NAME.fullmatch(partition)
    try:
        return date(*map(int, found.groups())) if found else None
    except ValueError:
        return None


def moment(dialect: str) -> Select[Any]:
    """The time by the database's clock: the start of the transaction. Locks: none."""
    # SQLite's own current_timestamp has no fraction of a second.
    now = (
        func.strftime(text("'%Y-%m-%d %H:%M:%f000'"), text("'now'"))
        if dialect == "sqlite"
        else func.current_timestamp()
    )
    return select(type_coerce(now, UtcDateTime))


def partitions() -> TextClause:
    """Schema and owner of `outboxkit_published`, and schema and name of each partition. PostgreSQL only.

    Index: the catalogue's own. Locks: none on tables.
    """
    return text(
        f"SELECT home.nspname, pg_get_userbyid(parent.relowner), space.nspname, child.relname FROM pg_class parent "  # noqa: S608 - our own name
        f"JOIN pg_namespace home ON home.oid = parent.relnamespace "
        f"LEFT JOIN pg_inherits part ON part.inhparent = parent.oid "
        f"LEFT JOIN pg_class child ON child.oid = part.inhrelid "
        f"LEFT JOIN pg_namespace space ON space.oid = child.relnamespace "
        f"WHERE parent.oid = to_regclass('{published.name}')"
    )


def be_alone() -> Select[Any]:
    """Until the transaction ends nobody else makes or drops partitions, or reads page by page. PostgreSQL only.

    Locks: the advisory lock `LOCK`.
    """
    return select(func.pg_advisory_xact_lock(LOCK))


def be_reading() -> Select[Any]:
    """Until the transaction ends no partition is made or dropped: no row moves while a page is read. PostgreSQL only.

    Locks: the advisory lock `LOCK`, shared.
    """
    return select(func.pg_advisory_xact_lock_shared(LOCK))


def wait_briefly() -> TextClause:
    """Until the transaction ends, give up where a lock is not had soon. PostgreSQL only. Locks: none."""
    return text(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")


def make_partition(schema: str, day: date) -> DDL:
    """A table for a day's rows, not attached yet. Locks: none that others could wait for."""
    return _ddl(f"CREATE TABLE {_quoted(schema, partition_of(day))} (LIKE {_parent(schema)} INCLUDING ALL)")


def give_to_owner(schema: str, day: date, owner: str) -> DDL:
    """Whoever makes a partition: the table's owner can drop it. Locks: the new table, which nobody else knows."""
    return _ddl(f"ALTER TABLE {_quoted(schema, partition_of(day))} OWNER TO {_quoted(owner)}")


def move_from_default(schema: str, day: date) -> DDL:
    """Move what the default partition holds of a day to the table of that day.

    Index: the default partition's primary key. Locks: the rows that it moves.
    """
    return _ddl(
        f"WITH gone AS (DELETE FROM {_quoted(schema, DEFAULT)} "  # noqa: S608 - names that are quoted, and dates
        f"WHERE published_at >= {_midnight(day)} AND published_at < {_midnight(day + timedelta(days=1))} "
        f"RETURNING {_COLUMNS}) "
        f"INSERT INTO {_quoted(schema, partition_of(day))} ({_COLUMNS}) SELECT {_COLUMNS} FROM gone"
    )


def hold_off(schema: str) -> DDL:
    """Have every relay wait before it looks for a partition: one that has looked already would fail at its insert.

    Locks: the table, ACCESS EXCLUSIVE.
    """
    return _ddl(f"LOCK TABLE {_parent(schema)} IN ACCESS EXCLUSIVE MODE")


def attach_partition(schema: str, day: date) -> DDL:
    """Have a day's rows go to its table from now on. Reads the default partition. Locks: those of `hold_off`."""
    return _ddl(
        f"ALTER TABLE {_parent(schema)} ATTACH PARTITION {_quoted(schema, partition_of(day))} "
        f"FOR VALUES FROM ({_midnight(day)}) TO ({_midnight(day + timedelta(days=1))})"
    )


def drop_partition(schema: str, day: date) -> DDL:
    """Forget a whole day. Locks: the table and the partition, ACCESS EXCLUSIVE, for no longer than it takes."""
    return _ddl(f"DROP TABLE {_quoted(schema, partition_of(day))}")


def prune_published(dialect: str, before: datetime, limit: int) -> Delete:
    """Forget at most `limit` kept rows from before this moment that are in no day's partition, the oldest first.

    Index: the primary key of the default partition, or of SQLite's plain table. Locks: the rows that it deletes.
    """
    name = published.name if dialect == "sqlite" else DEFAULT
    kept = table(name, column("published_at", UtcDateTime), column("position", BigInteger))
    place = (kept.c.published_at, kept.c.position)
    old = select(*place).where(kept.c.published_at < before).order_by(*place).limit(limit)
    return delete(kept).where(tuple_(*place).in_(old))


def any_published() -> Select[Any]:
    """A row if anything is kept. Index: none, it stops at the first row. Locks: none."""
    return select(published.c.position).limit(1)


def count_kept(*, type_: str | None, key: str | None) -> Select[int, Any, Any]:
    """How many kept rows a replay would publish, and when the first and the last were published.

    Parameters: since, until. Index: the primary key, from `since` to `until`. Locks: none.
    """
    at = published.c.published_at
    return select(func.count(), func.min(at), func.max(at)).where(*_wanted(type_, key))


def kept_page(*, type_: str | None, key: str | None) -> Select[Any]:
    """The next kept rows behind a place, in the order in which they were published: by key in position order.

    Parameters: since, until; after_at and after_position: the place; limit. Index: the primary key of each partition
    from the place on. Locks: none.
    """
    place = (published.c.published_at, published.c.position)
    after = (bindparam("after_at", type_=UtcDateTime), bindparam("after_position", type_=BigInteger))
    return (
        select(*KEPT)
        .where(*_wanted(type_, key), published.c.published_at >= after[0], tuple_(*place) > tuple_(*after))
        .order_by(*place)
        .limit(bindparam("limit", type_=BigInteger))
    )


def _wanted(type_: str | None, key: str | None) -> list[ColumnElement[bool]]:
    """`since` is part of the range, `until` is not."""
    wanted = [
        published.c.published_at >= bindparam("since", type_=UtcDateTime),
        published.c.published_at < bindparam("until", type_=UtcDateTime),
    ]
    wanted += [published.c.type == type_] if type_ is not None else []
    wanted += [published.c.key == key] if key is not None else []
    return wanted


def _midnight(day: date) -> str:
    return f"'{day.isoformat()} UTC'"


def _parent(schema: str) -> str:
    return _quoted(schema, published.name)


def _quoted(*names: str) -> str:
    """A name with its schema: `search_path` finds a table, but it may not begin with the schema of that table."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _ddl(statement: str) -> DDL:
    return DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
