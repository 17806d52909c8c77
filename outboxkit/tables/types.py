"""The building blocks of the tables: their `metadata`, moments, and columns that number rows by themselves."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Identity,
    Integer,
    MetaData,
    String,
    TypeDecorator,
    case,
    literal,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from outboxkit.message import FIRST_MOMENT, LAST_MOMENT

PARKED = datetime(9999, 12, 31, tzinfo=UTC)
"""The `due_at` of a row that waits for an operator: its key is parked. Not infinity, which Python cannot read."""


class _StoredText(sqlite.DATETIME):
    """SQLite stores whatever it is given: what is no time is read as the first one, and keeps no other row back."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        parse: Any = super().result_processor(dialect, coltype)

        def read(value: Any) -> datetime | None:
            try:
                moment: datetime | None = parse(value)
            except (TypeError, ValueError):
                return FIRST_MOMENT
            return moment

        return read


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time: `timestamptz` on PostgreSQL, UTC text on SQLite, which has no zones. Always aware in Python."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type that the driver of this database knows."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(_StoredText())  # type: ignore[no-untyped-call]
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; on SQLite without the zone, so that equal moments have equal texts."""
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert to an aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def readable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column, bounded if it holds moments: otherwise one out of range would make the whole row unreadable."""
    if not isinstance(column.type, UtcDateTime):
        return column
    first, last = literal(FIRST_MOMENT, UtcDateTime), literal(LAST_MOMENT, UtcDateTime)
    return case((column < first, first), (column > last, last), else_=column).label(column.key)


metadata = MetaData()
"""Every table of outboxkit: add it to your Alembic `target_metadata`, or call `metadata.create_all` in a test."""


def big_identity(name: str) -> Column[Any]:
    """A column that numbers rows by itself: the primary key."""
    # SQLite numbers rows by itself only if the column is exactly INTEGER PRIMARY KEY.
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)


class random_text(FunctionElement[str]):  # noqa: N801 - an SQL function
    """A text of 32 or 36 characters that the database makes, different each time."""

    type = String()
    inherit_cache = True


@compiles(random_text)
def _random_on_server(*_: Any, **__: Any) -> str:
    # As the server itself writes it, so that Alembic sees no difference.
    return "(gen_random_uuid())::text"


@compiles(random_text, "sqlite")
def _random_in_file(*_: Any, **__: Any) -> str:
    return "(lower(hex(randomblob(16))))"


class plus_zero(FunctionElement[int]):  # noqa: N801 - an SQL expression
    """A column by which the planner finds the one index that has it so, and no other. On SQLite the bare column."""

    type = BigInteger()
    inherit_cache = True


@compiles(plus_zero)
def _plus_zero(element: plus_zero, compiler: SQLCompiler, **how: Any) -> str:
    return f"({compiler.process(element.clauses, **how)} + 0)"


@compiles(plus_zero, "sqlite")
def _bare(element: plus_zero, compiler: SQLCompiler, **how: Any) -> str:
    # SQLAlchemy warns of an index on an expression when it reflects a file.
    return compiler.process(element.clauses, **how)
