"""Tables with a partition for each day on PostgreSQL: creating a day's partition, and dropping it."""

import re
from collections.abc import Callable, Iterable
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
"""The maximum time that a change of partitions waits for a lock, and makes others wait behind it."""
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A table with a partition for each UTC day, and one for the rest.

    Attributes:
        parent: the table.
        by: the column that decides a row's day.
        bound: its lowest value of a day.
        lock: the number of an advisory lock, exclusive for changes of its partitions.
        kept_by: the column of a time that may keep a row for longer than its day; None if the day alone decides.
        insert_retries: whether the writer repeats an insert that fails because a partition is being attached.
    """

    parent: Table
    by: str
    bound: Callable[[date], str]
    lock: int
    kept_by: str | None = None
    insert_retries: bool = False

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
        """The day of a partition, by its name; None if it is not a name of outboxkit's."""
        match = re.fullmatch(rf"{self.name}_(\d{{4}})(\d\d)(\d\d)", partition)
        try:
            return date(*map(int, match.groups())) if match else None
        except ValueError:
            return None

    def days_of(self, rows: Iterable[Any]) -> list[date]:
        """The days of the partitions that `attached` has read, in order."""
        return sorted(day for row in rows if row[3] is not None and (day := self.day_of(row[3])) is not None)


def midnight(day: date) -> str:
    """The beginning of a day as a timestamp."""
    return f"{day.isoformat()} UTC"


def first_id(day: date) -> str:
    """A text that sorts before every UUIDv7 of a day, and after those of the day before: 48 bits of milliseconds."""
    milliseconds = (datetime.combine(day, time(), UTC) - _EPOCH) // timedelta(milliseconds=1)
    digits = f"{max(milliseconds, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def day_of_id(id_: str) -> date:
    """The day of a UUIDv7, from its first 13 characters."""
    return (_EPOCH + timedelta(milliseconds=int(id_[:8] + id_[9:13], 16))).date()


PUBLISHED = PartitionedTable(published, "published_at", midnight, lock=0x6F75_7462_7075)
INBOX = PartitionedTable(
    inbox, "message_id", first_id, lock=0x6F75_7462_696E, kept_by="processed_at", insert_retries=True
)


def attached(partitioned: PartitionedTable) -> TextClause:
    """Schema and owner of the table, and schema and name of each partition. PostgreSQL only.

    Index: the catalogue's own. Locks: none on tables.
    """
    return text(
        f"SELECT home.nspname, pg_get_userbyid(parent.relowner), space.nspname, child.relname FROM pg_class parent "  # noqa: S608 - our own name
        f"JOIN pg_namespace home ON home.oid = parent.relnamespace "
        f"LEFT JOIN pg_inherits part ON part.inhparent = parent.oid "
        f"LEFT JOIN pg_class child ON child.oid = part.inhrelid "
        f"LEFT JOIN pg_namespace space ON space.oid = child.relnamespace "
        f"WHERE parent.oid = to_regclass('{partitioned.name}')"
    )


def lock_partitions(partitioned: PartitionedTable) -> Select[Any]:
    """Keep other sessions from changing partitions of the table until the transaction ends. PostgreSQL only.

    Locks: its advisory lock.
    """
    return select(func.pg_advisory_xact_lock(partitioned.lock))


def wait_briefly() -> TextClause:
    """Limit the transaction's waits for locks to `LOCK_MILLISECONDS`. PostgreSQL only. Locks: none."""
    return text(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")


def see_commits() -> TextClause:
    """Make each statement see earlier commits, so that a check after a lock is reliable. PostgreSQL only.

    It must be the first statement of the transaction. Locks: none.
    """
    return text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def first_unplaced(partitioned: PartitionedTable) -> Select[Any]:
    """The lowest UUIDv7 or UUIDv8 in a range of the default partition: its day has no partition yet. PostgreSQL only.

    Parameters: lowest, behind (ids). Index: none, it reads the default partition. Locks: none.
    """
    rows = table(partitioned.default, column(partitioned.by, String))
    id_ = rows.c[partitioned.by]
    conditions = (id_ >= bindparam("lowest"), id_ < bindparam("behind"))
    return select(func.min(id_)).where(*conditions, id_.regexp_match(literal_column("'^[0-9a-f]{8}-[0-9a-f]{4}-[78]'")))


def sizes() -> TextClause:
    """Each table of outboxkit: its name, its bytes with indexes, and the planner's estimate of its rows.

    Partitions count as their table; an estimate below 0 is none. PostgreSQL only. Index: the catalogue's own. Locks:
    ACCESS SHARE on the tables, each for a moment.
    """
    return text(
        "SELECT parent.relname AS name, CAST(sum(pg_total_relation_size(leaf.oid)) AS bigint) AS bytes, "
        "CAST(sum(CASE WHEN leaf.relkind = 'r' THEN leaf.reltuples ELSE 0 END) AS bigint) AS estimate "
        "FROM pg_class parent LEFT JOIN LATERAL pg_partition_tree(parent.oid) AS part ON true "
        "JOIN pg_class leaf ON leaf.oid = coalesce(part.relid, parent.oid) "
        "WHERE parent.relkind IN ('r', 'p') AND NOT parent.relispartition "
        "AND parent.relname LIKE 'outboxkit\\_%' AND pg_table_is_visible(parent.oid) GROUP BY parent.relname"
    )


def make_partition(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Create a table for a day's rows, not attached yet. PostgreSQL only. Locks: none that others could wait for."""
    child, parent = _quoted(schema, partitioned.partition_of(day)), _quoted(schema, partitioned.name)
    return _ddl(f"CREATE TABLE {child} (LIKE {parent} INCLUDING ALL)")


def give_to_owner(partitioned: PartitionedTable, schema: str, day: date, owner: str) -> DDL:
    """Give a partition to the table's owner, so that this role can drop it. PostgreSQL only.

    Locks: the new table, which is not visible to others yet.
    """
    return _ddl(f"ALTER TABLE {_quoted(schema, partitioned.partition_of(day))} OWNER TO {_quoted(owner)}")


def copy_from_default(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Copy a day's rows from the default partition to that day's table, except those already there.

    PostgreSQL only. Index: the primary key of the day's table. In the default partition that of `outboxkit_published`,
    and none of `outboxkit_inbox`, whose key begins with the handler. Locks: none that block others: a duplicate that
    arrives meanwhile finds the row in its old partition.
    """
    columns = ", ".join(f'"{each.name}"' for each in partitioned.parent.columns)
    return _ddl(
        f"INSERT INTO {_quoted(schema, partitioned.partition_of(day))} ({columns}) SELECT {columns} "  # noqa: S608 - names that are quoted, and dates
        f"FROM {_quoted(schema, partitioned.default)} WHERE {_of_day(partitioned, day)} ON CONFLICT DO NOTHING"
    )


def block_inserts(partitioned: PartitionedTable, schema: str) -> DDL:
    """Block every insert before it chooses a partition; one that has chosen already would fail. PostgreSQL only.

    Locks: the table, ACCESS EXCLUSIVE: it waits for every open transaction that has used the table.
    """
    return _ddl(f"LOCK TABLE {_quoted(schema, partitioned.name)} IN ACCESS EXCLUSIVE MODE")


def close_default(partitioned: PartitionedTable, schema: str) -> DDL:
    """Block inserts whose day has no partition; those that have chosen already fail with 23514. PostgreSQL only.

    Locks: the default partition alone, ACCESS EXCLUSIVE: it waits for no transaction whose day has a partition.
    """
    return _ddl(f"LOCK TABLE {_quoted(schema, partitioned.default)} IN ACCESS EXCLUSIVE MODE")


def clear_default(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Delete the copied rows from the default partition. PostgreSQL only.

    Index: as `copy_from_default`. Locks: none beyond those of `block_inserts` or `close_default`.
    """
    return _ddl(f"DELETE FROM {_quoted(schema, partitioned.default)} WHERE {_of_day(partitioned, day)}")  # noqa: S608 - as above


def attach_partition(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Attach a day's table: new rows of that day go there from now on. Reads the default partition. PostgreSQL only.

    Locks: the table, SHARE UPDATE EXCLUSIVE, which no insert waits for; those of `block_inserts` or `close_default`.
    """
    return _ddl(
        f"ALTER TABLE {_quoted(schema, partitioned.name)} "
        f"ATTACH PARTITION {_quoted(schema, partitioned.partition_of(day))} "
        f"FOR VALUES FROM ('{partitioned.bound(day)}') TO ('{partitioned.bound(day + _DAY)}')"
    )


def close_partition(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Block all other use of this day. PostgreSQL only. Locks: the partition alone, ACCESS EXCLUSIVE."""
    return _ddl(f"LOCK TABLE {_quoted(schema, partitioned.partition_of(day))} IN ACCESS EXCLUSIVE MODE")


def still_needed(partitioned: PartitionedTable, schema: str, day: date) -> Select[Any]:
    """Whether a day has a row that must be kept; after `close_partition` that cannot change. PostgreSQL only.

    Parameters: before. Index: none, it reads the partition up to the first such row. Locks: none.
    """
    rows = table(partitioned.partition_of(day), column(str(partitioned.kept_by), UtcDateTime), schema=schema)
    is_needed = rows.c[str(partitioned.kept_by)] >= bindparam("before", type_=UtcDateTime)
    return select(select(literal_column("1")).select_from(rows).where(is_needed).exists())


def empty_partition(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Delete a day's rows and free their space. PostgreSQL only. Locks: those of `close_partition`."""
    return _ddl(f"TRUNCATE {_quoted(schema, partitioned.partition_of(day))}")


def drop_partition(partitioned: PartitionedTable, schema: str, day: date) -> DDL:
    """Drop a whole day. PostgreSQL only.

    Locks: the table and the partition, ACCESS EXCLUSIVE, only for the drop itself.
    """
    return _ddl(f"DROP TABLE {_quoted(schema, partitioned.partition_of(day))}")


def range_of_ids(first: date, last: date) -> dict[str, str]:
    """The parameters of `first_unplaced` for these days, both included."""
    return {"lowest": first_id(first), "behind": first_id(last + _DAY)}


def _of_day(partitioned: PartitionedTable, day: date) -> str:
    return f"{partitioned.by} >= '{partitioned.bound(day)}' AND {partitioned.by} < '{partitioned.bound(day + _DAY)}'"


def _quoted(*names: str) -> str:
    """A quoted name with its schema: `search_path` finds a table, but may begin with another schema."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _ddl(statement: str) -> DDL:
    return DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
