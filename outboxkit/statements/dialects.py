"""The differences between PostgreSQL and SQLite: the one module that tells them apart.

Elsewhere a statement is written once, or asks what the database can do: `is_server`, `has_one_writer`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BindParameter,
    ColumnElement,
    Dialect,
    Double,
    Integer,
    Interval,
    Select,
    Table,
    Text,
    TypeDecorator,
    any_,
    bindparam,
    cast,
    column,
    extract,
    func,
    literal_column,
    select,
    table,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

SERVER = "postgresql"
"""The dialect of what is for a server only."""

DRIVERS = {"postgresql": "psycopg", "sqlite": "aiosqlite"}
"""The drivers of outboxkit's own processes."""
OLDEST, NEWEST = 13, 18
"""The major versions of PostgreSQL that the tests run on; newer ones are accepted."""


def is_server(dialect: str) -> bool:
    """Whether the database has many writers at once, roles, sessions, advisory locks, a planner and partitions."""
    return dialect == SERVER


def has_one_writer(dialect: str) -> bool:
    """Whether the database is a file: one transaction at a time writes, so that no other one holds a row meanwhile."""
    return dialect == "sqlite"


_LOCK_COLUMNS = ("virtualtransaction", "locktype", "database", "relation", "mode", "pid", "granted")
LOCKS = table("pg_locks", *map(column, (*_LOCK_COLUMNS, "classid", "objid", "objsubid")))
"""The server's locks. Those of this database are meant by `IN_THIS_DATABASE`."""
_DATABASES = table("pg_database", column("oid"), column("datname"))
IN_THIS_DATABASE: ColumnElement[bool] = (
    LOCKS.c.database
    == select(_DATABASES.c.oid).where(_DATABASES.c.datname == func.current_database()).scalar_subquery()
)


def snapshot_options(dialect: str) -> dict[str, Any]:
    """Execution options of a connection that reads everything as of one moment, and writes nothing; none for a file."""
    return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True} if is_server(dialect) else {}


def digest(dialect: str, payload: ColumnElement[bytes]) -> ColumnElement[Any]:
    """A value that differs if the payload does: the payload itself if no network is between it and us."""
    if has_one_writer(dialect):
        return payload
    return func.substr(func.md5(payload), literal_column("1"), literal_column("12"), type_=Text)


def insert_into(dialect: str, table: Table) -> Any:
    """The dialect's `insert(table)`, which knows ON CONFLICT."""
    return sqlite.insert(table) if has_one_writer(dialect) else postgresql.insert(table)


_TIME: ColumnElement[str] = literal_column("'%Y-%m-%d %H:%M:%f000'")
"""The form in which SQLAlchemy keeps a time on SQLite: text with six digits of a second. SQLite's own
`current_timestamp` has no fraction, and texts of another length do not compare as the times do."""


def transaction_time(dialect: str) -> ColumnElement[Any]:
    """The database's time: on a server of the transaction's start."""
    return _text_of_time() if has_one_writer(dialect) else func.current_timestamp()


def statement_time(dialect: str, later: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
    """The database's time, or so much `later` (an `interval`): on a server of the moment when the statement came in."""
    return _time(dialect, func.statement_timestamp(), later)


def clock_time(dialect: str, later: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
    """The database's time, or so much `later` (an `interval`): on a server of this very moment."""
    return _time(dialect, func.clock_timestamp(), later)


def latest_time(dialect: str, moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """The database's time, or `moment` if that is later; null stands for none."""
    now = func.current_timestamp()
    return func.max(now, func.coalesce(moment, now)) if has_one_writer(dialect) else func.greatest(now, moment)


def latest_of(dialect: str, first: ColumnElement[Any], *others: ColumnElement[Any]) -> ColumnElement[Any]:
    """The latest of some moments; null stands for none, but not as the first."""
    if has_one_writer(dialect):
        return func.max(first, *(func.coalesce(other, first) for other in others))
    return func.greatest(first, *others)


def seconds_between(
    dialect: str, first: ColumnElement[datetime], last: ColumnElement[datetime]
) -> ColumnElement[float]:
    """The seconds from one moment to another."""
    if has_one_writer(dialect):
        return (func.julianday(last) - func.julianday(first)) * literal_column("86400.0")
    return cast(extract("epoch", last - first), Double)


def _time(dialect: str, now: ColumnElement[Any], later: ColumnElement[Any] | None) -> ColumnElement[Any]:
    if has_one_writer(dialect):
        return _text_of_time() if later is None else _text_of_time(later)
    return now if later is None else now + later


def _text_of_time(*changes: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.strftime(_TIME, literal_column("'now'"), *changes, type_=Text)


class _Span(TypeDecorator[timedelta]):
    """A duration: an interval on PostgreSQL, what SQLite's `strftime` adds to a time."""

    impl = Interval
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(Text() if has_one_writer(dialect.name) else Interval())

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> Any:
        if value is None or not has_one_writer(dialect.name):
            return value
        return f"{value.total_seconds():+.3f} seconds"


def interval(name: str) -> BindParameter[timedelta]:
    """A parameter that is a duration, to be added to a time."""
    return bindparam(name, type_=_Span)


def among(dialect: str, candidate: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Whether a column is one of the parameter's values.

    One array on a server, so that the statement is the same text, and one plan, for lists of every length.
    """
    if has_one_writer(dialect):
        return candidate.in_(bindparam(name, expanding=True, type_=candidate.type))
    return candidate == any_(bindparam(name, type_=ARRAY(candidate.type)))


class _JsonList(TypeDecorator[Sequence[Any]]):
    """A list as a JSON array, for SQLite; moments as the text that it keeps them as."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps([_as_text(one) if isinstance(one, datetime) else one for one in value or ()])


def _as_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"


class Lists(NamedTuple):
    """Parameters that are lists of one length, as the rows of a query: `c` has a column for each, by its name."""

    c: Mapping[str, ColumnElement[Any]]
    order: ColumnElement[Any]
    where: tuple[ColumnElement[bool], ...] = ()

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """These columns of the rows, in the order of the lists."""
        return select(*columns).where(*self.where).order_by(self.order)


def lists(dialect: str, kinds: Mapping[str, TypeEngine[Any]]) -> Lists:
    """Parameters of these names and types, each a list: one statement, and one text, for any number of rows."""
    names = list(kinds)
    if has_one_writer(dialect):
        first = func.json_each(bindparam(names[0], type_=_JsonList)).table_valued("key", "value", name="given")
        place = func.printf(literal_column("'$[%d]'"), first.c.key)
        others = {name: func.json_extract(bindparam(name, type_=_JsonList), place) for name in names[1:]}
        # Without a WHERE, SQLite takes the ON CONFLICT of an insert for a join.
        return Lists({names[0]: first.c.value, **others}, first.c.key, (true(),))
    arrays = func.unnest(*(bindparam(name, type_=ARRAY(kind)) for name, kind in kinds.items()))
    columns = (column(name, kind) for name, kind in kinds.items())
    rows = arrays.table_valued(*columns, with_ordinality="place").render_derived("given")
    return Lists({name: rows.c[name] for name in names}, rows.c.place)


def by_bytes(dialect: str, text: ColumnElement[str]) -> ColumnElement[str]:
    """A text that is compared by its bytes, as Python compares code points; SQLite does so anyway."""
    return text if has_one_writer(dialect) else text.collate("C")


def row_id(dialect: str) -> ColumnElement[Any]:
    """A row's place in its table, until it is changed. A condition on the key might make the planner read it all."""
    return literal_column("rowid", Integer) if has_one_writer(dialect) else literal_column("ctid")


def set_locally(**settings: str) -> Select[Any]:
    """Give this transaction settings of PostgreSQL."""
    locally: ColumnElement[Any] = literal_column("true")
    return select(
        *(func.set_config(*(literal_column(f"'{text}'") for text in pair), locally) for pair in settings.items())
    )


def among_found(dialect: str, candidate: ColumnElement[Any], query: Select[Any]) -> ColumnElement[bool]:
    """Whether a `row_id` is one of those that the query finds, which is asked once."""
    return candidate.in_(query) if has_one_writer(dialect) else candidate == any_(func.array(query.scalar_subquery()))


def unplaced_rows(dialect: str, table: Table) -> str:
    """The name of the table with the rows that are in no day's partition: itself if it has no partitions."""
    return table.name if has_one_writer(dialect) else f"{table.name}_default"
