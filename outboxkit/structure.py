"""A check that the tables have all their parts: a partition, a column or the trigger may have been dropped.

The version tells which migrations ran, and nothing about later changes to the tables.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import DDL, Connection

from outboxkit import statements
from outboxkit.errors import SchemaError
from outboxkit.statements.dialects import is_server
from outboxkit.tables import inbox, metadata, outbox, published
from outboxkit.tables.postgresql import INDEX_PROCESSED, NOTIFY, PROCESSED, TRIGGER, default_partition_again


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a table.

    Attributes:
        kind: `table`, `column`, `partition` (the one called `default`), `index` or `trigger`.
        table: the table's name.
        name: the part's own name.
    """

    kind: str
    table: str
    name: str

    def __str__(self) -> str:
        """The part's name in an error."""
        return {
            "table": f"table {self.table}",
            "column": f"column {self.table}.{self.name}",
            "partition": f"the {self.name} partition of {self.table}",
        }.get(self.kind, f"{self.kind} {self.name} of {self.table}")


NEEDED = ("table", "column", "partition")
"""The kinds of parts without which nothing works; without an index or the trigger it is slower."""
ALL = (*NEEDED, "index", "trigger")
_REPAIRABLE = ("partition", "index", "trigger")
"""Kinds that `repair_parts` creates again: they hold no rows of their own."""


def missing(connection: Connection) -> list[Part]:
    """The parts that tables of this version should have and do not, in the connection's own search path."""
    existing = {Part(*row) for row in connection.execute(statements.activity.existing_parts(connection.dialect.name))}
    tables = {part.table for part in existing}
    expected = _expected(divided=is_server(connection.dialect.name))
    return [part for part in expected if part not in existing and (part.kind == "table" or part.table in tables)]


def check_parts(connection: Connection, kinds: Collection[str] = ALL) -> None:
    """Make sure that no part of these kinds is missing.

    Raises:
        SchemaError: one is; the text names it, and the cure.
    """
    parts = [part for part in missing(connection) if part.kind in kinds]
    if not parts:
        return
    irreparable = [part for part in parts if part.kind not in _REPAIRABLE]
    cure = (
        "undo what dropped it, a revision of your Alembic history for example, or restore it from a backup"
        if irreparable
        else "run `outboxkit migrate`, which creates it again; rows that were in it are lost"
        if parts[0].kind == "partition"
        else "run `outboxkit migrate`, which creates it again"
    )
    names = ", ".join(str(part) for part in (irreparable or parts))
    raise SchemaError(f"a part of the outboxkit tables is missing: {names}: {cure}")


def repair_parts(connection: Connection) -> list[Part]:
    """Create missing default partitions, indexes and the trigger, in the connection's transaction; returns them.

    A default partition that was only detached is attached again, with its rows.

    Raises:
        SchemaError: a table or a column is missing.
    """
    check_parts(connection, ("table", "column"))
    repaired: list[Part] = []
    # Partitions first: the indexes of a missing one are missing with it.
    while parts := [part for part in missing(connection) if part not in repaired]:
        part = next((part for part in parts if part.kind == "partition"), parts[0])
        _make(connection, part)
        repaired.append(part)
    return repaired


def _make(connection: Connection, part: Part) -> None:
    ddl = {
        ("partition", "default"): default_partition_again(part.table),
        ("index", PROCESSED): INDEX_PROCESSED,
        ("trigger", TRIGGER): NOTIFY,
    }.get((part.kind, part.name))
    if ddl is not None:
        connection.execute(DDL(ddl))  # type: ignore[no-untyped-call]
    else:
        next(index for index in metadata.tables[part.table].indexes if index.name == part.name).create(connection)


def _expected(*, divided: bool) -> Iterator[Part]:
    for table in metadata.sorted_tables:
        yield Part("table", table.name, "")
        yield from (Part("column", table.name, column.name) for column in table.columns)
        yield from (Part("index", table.name, str(index.name)) for index in table.indexes)
    if divided:
        yield from (Part("partition", table.name, "default") for table in (inbox, published))
        yield Part("index", f"{inbox.name}_default", PROCESSED)
        yield Part("trigger", outbox.name, TRIGGER)
