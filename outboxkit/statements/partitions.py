"""Tables that PostgreSQL divides by days: making a day's partition, and giving it up."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from sqlalchemy import (
    DDL,
    Select,
    String,
    Table,
    TextClause,
    bindparam,
    column,
    func,
    literal_column,
    select,
    table,
    text,
)

from outboxkit.tables import UtcDateTime, inbox, published

LOCK_MILLISECONDS = 500
"""How long partitions may wait for a lock, and make others wait behind them."""
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Ranged:
    """A table with a partition for each UTC day, and one for the rest.

    Attributes:
        parent: the table.
        by: the column that says which day a row belongs to.
        bound: its lowest value of a day.
        lock: of an advisory lock: exclusive for who makes or drops its partitions.
        kept_by: the column of a time that may keep a row for longer than its day; None where the day is all.
        tried_again: whether an insert that meets a partition being attached is tried again by who sent it.
    """

    parent: Table
    by: str
    bound: Callable[[date], str]
    lock: int
    kept_by: str | None = None
    tried_again: bool = False

    @property
    def name(self) -> str:
        """The table's name."""
        return self.parent.name

    @property
    def default(self) -> str:
        """The partition of rows whose day has none of its own."""
        return f"{self.name}_default"

    def partition_of(self, day: date) -> str:
        """The name of a day's partition."""
        return f"{self.name}_{day.year:04}{day.month:02}{day.day:02}"

    def day_of(self, partition: str) -> date | None:
        """The day of a partition, by its name; None where outboxkit has not made it."""
        found = re.fullmatch(rf"{self.name}_(\d{{4}})(\d\d)(\d\d)", partition)
        try:
            return date(*map(int, found.groups())) if found else None
        except ValueError:
            return None


def midnight(day: date) -> str:
    """The beginning of a day as a timestamp."""
    return f"{day.isoformat()} UTC"


def first_id(day: date) -> str:
    """What sorts before every UUIDv7 of a day, and behind those of the day before: its 48 bits of milliseconds."""
    milliseconds = (datetime.combine(day, time(), UTC) - _EPOCH) // timedelta(milliseconds=1)
    digits = f"{max(milliseconds, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def day_of_id(id_: str) -> date:
    """The day of a UUIDv7, of which the first 13 characters count."""
    return (_EPOCH + timedelta(milliseconds=int(id_[:8] + id_[9:13], 16))).date()


PUBLISHED = Ranged(published, "published_at", midnight, lock=0x6F75_7462_7075)
INBOX = Ranged(inbox, "message_id", first_id, lock=0x6F75_7462_696E, kept_by="processed_at", tried_again=True)


def attached(ranged: Ranged) -> TextClause:
    """Schema and owner of the table, and schema and name of each partition. PostgreSQL only.

    Index: the catalogue's own. Locks: none on tables.
    """
    return text(
        f"SELECT home.nspname, pg_get_userbyid(parent.relowner), space.nspname, child.relname FROM pg_class parent "  # noqa: S608 - our own name
        f"JOIN pg_namespace home ON home.oid = parent.relnamespace "
        f"LEFT JOIN pg_inherits part ON part.inhparent = parent.oid "
        f"LEFT JOIN pg_class child ON child.oid = part.inhrelid "
        f"LEFT JOIN pg_namespace space ON space.oid = child.relnamespace "
        f"WHERE parent.oid = to_regclass('{ranged.name}')"
    )


def be_alone(ranged: Ranged) -> Select[Any]:
    """Until the transaction ends nobody else makes or drops partitions of the table. PostgreSQL only.

    Locks: its advisory lock.
    """
    return select(func.pg_advisory_xact_lock(ranged.lock))


def wait_briefly() -> TextClause:
    """Until the transaction ends, give up where a lock is not had soon. PostgreSQL only. Locks: none."""
    return text(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")


def see_commits() -> TextClause:
    """Have each statement see what was committed before it: so a check counts that follows a lock. PostgreSQL only.

    It must be the first statement of the transaction. Locks: none.
    """
    return text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def first_unplaced(ranged: Ranged) -> Select[Any]:
    """The lowest UUIDv7 in a range of the default partition: its day has no partition yet. PostgreSQL only.

    Parameters: lowest, behind (ids). Index: none, it reads the default partition. Locks: none.
    """
    rows = table(ranged.default, column(ranged.by, String))
    found = rows.c[ranged.by]
    wanted = (found >= bindparam("lowest"), found < bindparam("behind"))
    return select(func.min(found)).where(*wanted, found.regexp_match(literal_column("'^[0-9a-f]{8}-[0-9a-f]{4}-7'")))


def make_partition(ranged: Ranged, schema: str, day: date) -> DDL:
    """A table for a day's rows, not attached yet. PostgreSQL only. Locks: none that others could wait for."""
    made, parent = _quoted(schema, ranged.partition_of(day)), _quoted(schema, ranged.name)
    return _ddl(f"CREATE TABLE {made} (LIKE {parent} INCLUDING ALL)")


def give_to_owner(ranged: Ranged, schema: str, day: date, owner: str) -> DDL:
    """Whoever makes a partition: the table's owner can drop it. PostgreSQL only.

    Locks: the new table, which nobody else knows.
    """
    return _ddl(f"ALTER TABLE {_quoted(schema, ranged.partition_of(day))} OWNER TO {_quoted(owner)}")


def copy_from_default(ranged: Ranged, schema: str, day: date) -> DDL:
    """Copy what the default partition holds of a day to the table of that day, but what is there already.

    PostgreSQL only. Index: the primary key of the day's table; of the default partition that of `outboxkit_published`,
    and none of `outboxkit_inbox`, where it begins with the handler. Locks: none that anybody waits for: a duplicate
    that comes meanwhile finds the row where it was.
    """
    columns = ", ".join(f'"{found.name}"' for found in ranged.parent.columns)
    return _ddl(
        f"INSERT INTO {_quoted(schema, ranged.partition_of(day))} ({columns}) SELECT {columns} "  # noqa: S608 - names that are quoted, and dates
        f"FROM {_quoted(schema, ranged.default)} WHERE {_of_day(ranged, day)} ON CONFLICT DO NOTHING"
    )


def hold_off(ranged: Ranged, schema: str) -> DDL:
    """Have every insert wait before it looks for a partition: one that has looked already would fail. PostgreSQL only.

    Locks: the table, ACCESS EXCLUSIVE: it waits for every open transaction that has used the table.
    """
    return _ddl(f"LOCK TABLE {_quoted(schema, ranged.name)} IN ACCESS EXCLUSIVE MODE")


def close_default(ranged: Ranged, schema: str) -> DDL:
    """Have every insert wait that found no partition for its day; those that have looked already fail with 23514.

    PostgreSQL only. Locks: the default partition alone, ACCESS EXCLUSIVE: it waits for nobody whose day has one.
    """
    return _ddl(f"LOCK TABLE {_quoted(schema, ranged.default)} IN ACCESS EXCLUSIVE MODE")


def clear_default(ranged: Ranged, schema: str, day: date) -> DDL:
    """Delete from the default partition what has been copied. PostgreSQL only.

    Index: as `copy_from_default`. Locks: none beyond those of `hold_off` or `close_default`.
    """
    return _ddl(f"DELETE FROM {_quoted(schema, ranged.default)} WHERE {_of_day(ranged, day)}")  # noqa: S608 - as above


def attach_partition(ranged: Ranged, schema: str, day: date) -> DDL:
    """Have a day's rows go to its table from now on. Reads the default partition. PostgreSQL only.

    Locks: the table, SHARE UPDATE EXCLUSIVE, which no insert waits for; those of `hold_off` or `close_default`.
    """
    return _ddl(
        f"ALTER TABLE {_quoted(schema, ranged.name)} ATTACH PARTITION {_quoted(schema, ranged.partition_of(day))} "
        f"FOR VALUES FROM ('{ranged.bound(day)}') TO ('{ranged.bound(day + _DAY)}')"
    )


def close_partition(ranged: Ranged, schema: str, day: date) -> DDL:
    """Have everybody wait who uses this day. PostgreSQL only. Locks: the partition alone, ACCESS EXCLUSIVE."""
    return _ddl(f"LOCK TABLE {_quoted(schema, ranged.partition_of(day))} IN ACCESS EXCLUSIVE MODE")


def still_needed(ranged: Ranged, schema: str, day: date) -> Select[Any]:
    """Whether a day has a row that may not be forgotten yet; after `close_partition` it stays so. PostgreSQL only.

    Parameters: before. Index: none, it reads the partition up to the first such row. Locks: none.
    """
    rows = table(ranged.partition_of(day), column(str(ranged.kept_by), UtcDateTime), schema=schema)
    kept = rows.c[str(ranged.kept_by)] >= bindparam("before", type_=UtcDateTime)
    return select(select(literal_column("1")).select_from(rows).where(kept).exists())


def empty_partition(ranged: Ranged, schema: str, day: date) -> DDL:
    """Forget a day's rows and give back their space. PostgreSQL only. Locks: those of `close_partition`."""
    return _ddl(f"TRUNCATE {_quoted(schema, ranged.partition_of(day))}")


def drop_partition(ranged: Ranged, schema: str, day: date) -> DDL:
    """Forget a whole day. PostgreSQL only.

    Locks: the table and the partition, ACCESS EXCLUSIVE, for no longer than it takes.
    """
    return _ddl(f"DROP TABLE {_quoted(schema, ranged.partition_of(day))}")


def range_of_ids(first: date, last: date) -> dict[str, str]:
    """The parameters of `first_unplaced` for these days, both included."""
    return {"lowest": first_id(first), "behind": first_id(last + _DAY)}


def _of_day(ranged: Ranged, day: date) -> str:
    return f"{ranged.by} >= '{ranged.bound(day)}' AND {ranged.by} < '{ranged.bound(day + _DAY)}'"


def _quoted(*names: str) -> str:
    """A name with its schema: `search_path` finds a table, but it may not begin with the schema of that table."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _ddl(statement: str) -> DDL:
    return DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
