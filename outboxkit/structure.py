"""Whether the tables have all their parts: something may have dropped a partition, a column or the trigger.

The version says which steps were run, and not what was done to the tables since then.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import DDL, Connection

from outboxkit import statements
from outboxkit.errors import SchemaError
from outboxkit.tables import inbox, metadata, outbox, published
from outboxkit.tables.postgresql import INDEX_PROCESSED, PROCESSED, RING, TRIGGER, default_partition_again


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a table.

    Attributes:
        kind: `table`, `column`, `partition` (the one called `default`), `index` or `trigger`.
        table: the table's name.
        name: the part's own.
    """

    kind: str
    table: str
    name: str

    def __str__(self) -> str:
        """As an error names it."""
        return {
            "table": f"table {self.table}",
            "column": f"column {self.table}.{self.name}",
            "partition": f"the {self.name} partition of {self.table}",
        }.get(self.kind, f"{self.kind} {self.name} of {self.table}")


NEEDED = ("table", "column", "partition")
"""Without these kinds of parts nothing works; without an index or the trigger it is slower."""
ALL = (*NEEDED, "index", "trigger")
_MADE_AGAIN = ("partition", "index", "trigger")
"""Kinds that `repair` makes again: no row was in them that another one could hold."""


def missing(connection: Connection) -> list[Part]:
    """What the tables of this version should have and have not, in the connection's own search path."""
    there = {Part(*row) for row in connection.execute(statements.activity.parts(connection.dialect.name))}
    tables = {part.table for part in there}
    expected = _expected(postgresql=connection.dialect.name == "postgresql")
    return [part for part in expected if part not in there and (part.kind == "table" or part.table in tables)]


def check(connection: Connection, kinds: Collection[str] = ALL) -> None:
    """Make sure that no part of these kinds is missing.

    Raises:
        SchemaError: one is; the text says which, and what to do.
    """
    gone = [part for part in missing(connection) if part.kind in kinds]
    if not gone:
        return
    lost = [part for part in gone if part.kind not in _MADE_AGAIN]
    cure = (
        "undo what dropped it, a revision of your Alembic history for example, or restore it from a backup"
        if lost
        else "run `outboxkit migrate`, which makes it again; rows that were in it are lost"
        if gone[0].kind == "partition"
        else "run `outboxkit migrate`, which makes it again"
    )
    names = ", ".join(str(part) for part in (lost or gone))
    raise SchemaError(f"a part of the outboxkit tables is missing: {names}: {cure}")


def repair(connection: Connection) -> list[Part]:
    """Make default partitions, indexes and the trigger again, in the connection's transaction; returns what was made.

    A default partition that was only detached is attached again, with its rows.

    Raises:
        SchemaError: a table or a column is missing.
    """
    check(connection, ("table", "column"))
    made: list[Part] = []
    # A partition first: one of its indexes is missing with it.
    while gone := [part for part in missing(connection) if part not in made]:
        part = next((part for part in gone if part.kind == "partition"), gone[0])
        _make(connection, part)
        made.append(part)
    return made


def _make(connection: Connection, part: Part) -> None:
    ddl = {
        ("partition", "default"): default_partition_again(part.table),
        ("index", PROCESSED): INDEX_PROCESSED,
        ("trigger", TRIGGER): RING,
    }.get((part.kind, part.name))
    if ddl is not None:
        connection.execute(DDL(ddl))  # type: ignore[no-untyped-call]
    else:
        next(index for index in metadata.tables[part.table].indexes if index.name == part.name).create(connection)


def _expected(*, postgresql: bool) -> Iterator[Part]:
    for table in metadata.sorted_tables:
        yield Part("table", table.name, "")
        yield from (Part("column", table.name, column.name) for column in table.columns)
        yield from (Part("index", table.name, str(index.name)) for index in table.indexes)
    if postgresql:
        yield from (Part("partition", table.name, "default") for table in (inbox, published))
        yield Part("index", f"{inbox.name}_default", PROCESSED)
        yield Part("trigger", outbox.name, TRIGGER)
