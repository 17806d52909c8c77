"""The database of a test: its rows are saved, read after each trial and put back, and its connections can be killed.

Rows are deleted and inserted as data: the tables themselves stay as they are.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.errors import ConfigurationError
from outboxkit.statements.dialects import has_one_writer, is_server
from outboxkit.testing.engines import asynchronous_engine, engine_of, plain_engine

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = 0x6F7574626F78
"""The key of the advisory lock that a process holds while it tries a handler."""
ROWS_LIMIT = 10_000
"""A database with more rows is taken for one that is not for tests."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row: its values by column, and its form from which it can be inserted again."""

    values: dict[str, Any]
    raw: Any


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of all tables, and the state of the generators of numbers."""

    rows: dict[str, list[StoredRow]]
    sequences: dict[str, Any] = field(default_factory=dict)


_TABLES = """
    SELECT format('%I.%I', n.nspname, c.relname) AS name,
           CASE WHEN n.nspname = current_schema() THEN c.relname ELSE n.nspname || '.' || c.relname END AS shown,
           array(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                  AND attgenerated = '' ORDER BY attnum) AS columns,
           array(SELECT format('%I.%I', fn.nspname, f.relname) FROM pg_constraint AS k
                   JOIN pg_class AS f ON f.oid = k.confrelid JOIN pg_namespace AS fn ON fn.oid = f.relnamespace
                  WHERE k.conrelid = c.oid AND k.contype = 'f' AND f.oid <> c.oid) AS parents
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
       AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
       AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
     ORDER BY 1
"""
_SEQUENCES = "SELECT format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value IS NOT NULL FROM pg_sequences"  # noqa: E501
_FILE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY 1"  # noqa: E501


class TrialDatabase:
    """A database whose rows are saved, compared and put back.

    Args:
        bound: an engine, or a session or a sessionmaker with an engine.

    Raises:
        ConfigurationError: there is no engine behind it, or its database cannot be used for this.
    """

    def __init__(self, bound: Any) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self.given = engine_of(bound)
        engine = self.given.sync_engine if isinstance(self.given, AsyncEngine) else self.given
        self.is_server = is_server(engine.dialect.name)
        if not self.is_server and not has_one_writer(engine.dialect.name):
            raise ConfigurationError(f"the engine is for {engine.dialect.name!r}; postgresql and sqlite are supported")
        self.url = engine.url
        if has_one_writer(engine.dialect.name) and engine.url.database in (None, "", ":memory:"):
            self._copy_to_file(engine)
        self._engine = self.sync_engine()
        self._tables = self._find_tables()

    def _copy_to_file(self, engine: Engine) -> None:
        """Take a copy of a database in memory: it has one connection, and several are needed."""
        if isinstance(self.given, AsyncEngine):
            raise ConfigurationError(
                "the engine's database is in memory and asynchronous: it has one connection, in one event loop, and "
                "several transactions at once are needed. Give an engine for a file, such as tmp_path / 'test.db'"
            )
        self._folder = TemporaryDirectory(prefix="outboxkit-")
        self.url = make_url(f"sqlite:///{Path(self._folder.name) / 'copy.db'}")
        target = create_engine(self.url)
        source, copy = engine.raw_connection(), target.raw_connection()
        try:
            source.driver_connection.backup(copy.driver_connection)  # type: ignore[union-attr]
        finally:
            copy.close()
            source.close()
            target.dispose()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let other processes of tests that use this database wait for the end of the block."""
        if self.is_server:
            with self._engine.connect() as connection:
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
                connection.commit()
                try:
                    yield
                finally:
                    connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
                    connection.commit()
            return
        name = hashlib.sha256(str(Path(self.url.database or "").resolve()).encode()).hexdigest()[:16]
        with (Path(gettempdir()) / f"outboxkit-{name}.lock").open("a") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def others_wait(self) -> bool:
        """Whether another process waits for this one."""
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = :high"
        if not self.is_server:
            return False
        with self._engine.connect() as connection:
            return bool(connection.execute(text(waiting), {"high": LOCK >> 32}).scalar())

    def sync_engine(self) -> Engine:
        """A new engine for handlers that are plain functions, with connections of its own."""
        own = self.given if self._folder is None else None
        return plain_engine(own if isinstance(own, Engine) else self.url, begins_immediately=not self.is_server)

    def async_engine(self) -> AsyncEngine:
        """A new engine for handlers that are coroutine functions, with connections of its own."""
        is_usable = self._folder is None and self.is_server
        return asynchronous_engine(self.given if isinstance(self.given, AsyncEngine) and is_usable else self.url)

    def read(self) -> Contents:
        """The rows of all tables."""
        with self._engine.connect() as connection:
            if self.is_server:
                return Contents(self._read_server(connection), self._read_sequences(connection))
            return Contents(self._read_file(connection))

    def save(self) -> Contents:
        """The rows of all tables, which `restore` puts back.

        Raises:
            ConfigurationError: there are too many for a database of tests.
        """
        contents = self.read()
        if (count := sum(map(len, contents.rows.values()))) > ROWS_LIMIT:
            raise ConfigurationError(
                f"the database {self.url.render_as_string()} has {count} rows; up to {ROWS_LIMIT} are accepted, "
                "because its tables are emptied and filled again. Give an engine of a database for tests"
            )
        return contents

    def restore(self, saved: Contents) -> None:
        """Put the rows back, and the numbers that the database will give next.

        Raises:
            ConfigurationError: another transaction has locked rows.
        """
        now = self.read()
        tables = [name for name, rows in now.rows.items() if _raws(rows) != _raws(saved.rows[name])]
        if not tables and now.sequences == saved.sequences:
            return
        try:
            with self._engine.begin() as connection:
                self._refill(connection, tables, saved)
        except DBAPIError as error:
            raise ConfigurationError(
                f"the rows of {', '.join(tables)} cannot be put back: {str(error.orig).splitlines()[0]}. If a session "
                "of the test is in a transaction, commit it before"
            ) from error

    def _refill(self, connection: Connection, tables: list[str], saved: Contents) -> None:
        order = [name for name in self._tables if name in tables]
        if self.is_server:
            connection.execute(text("SET LOCAL lock_timeout = '5s'"))
            with suppress(DBAPIError), connection.begin_nested():  # foreign keys and triggers rest, if the role may
                connection.execute(text("SET LOCAL session_replication_role = replica"))
        for name in reversed(order):
            connection.execute(text(f"DELETE FROM {name}"))
        for name in order:
            rows, columns = [row.raw for row in saved.rows[name]], self._tables[name][1]
            if rows and self.is_server:
                names, values = ", ".join(columns), ", ".join(f"(line).{each}" for each in columns)
                lines = f"SELECT line::{name} AS line FROM unnest(CAST(:rows AS text[])) AS line"
                insert = f"INSERT INTO {name} ({names}) OVERRIDING SYSTEM VALUE SELECT {values} FROM ({lines}) AS lines"
                connection.execute(text(insert), {"rows": rows})
            elif rows:
                marks = ", ".join("?" * len(columns))
                connection.exec_driver_sql(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})", rows)
        for name, (value, called) in saved.sequences.items():
            setval = text("SELECT setval(CAST(:name AS regclass), :value, :called)")
            connection.execute(setval, {"name": name, "value": value, "called": called})

    def advance(self, saved: Contents) -> None:
        """Let the database's generators of numbers go on by some, as rollbacks do."""
        with self._engine.begin() as connection:
            for name, (value, _) in saved.sequences.items():
                with suppress(DBAPIError), connection.begin_nested():  # a sequence may end before
                    setval = text("SELECT setval(CAST(:name AS regclass), :value)")
                    connection.execute(setval, {"name": name, "value": value + 7})

    def shadow(self, connection: Connection, contents: Contents) -> list[str]:
        """Let a connection to a file read these rows; the names of the temporary tables that hold them."""
        names = []
        for name, rows in contents.rows.items():
            columns = ", ".join(self._tables[name][1])
            if not self.shown(name).startswith("outboxkit_"):
                connection.exec_driver_sql(f"CREATE TEMP TABLE {name} AS SELECT {columns} FROM main.{name} WHERE false")
                marks = ", ".join("?" * len(self._tables[name][1]))
                if rows:
                    insert = f"INSERT INTO temp.{name} VALUES ({marks})"
                    connection.exec_driver_sql(insert, [row.raw for row in rows])
                names.append(name)
        return names

    def numbered(self) -> dict[str, set[str]]:
        """The columns with numbers that a file gives to its rows, and those that refer to them; a server has others.

        Every key that is an integer may be one.
        """
        if self.is_server:
            return {}
        result: dict[str, set[str]] = {}
        with self._engine.connect() as connection:
            keys = {}
            for name, (shown, _) in self._tables.items():
                columns = connection.exec_driver_sql(f"PRAGMA table_info({name})").all()
                primary = [column[1] for column in columns if column[5]]
                if len(primary) == 1 and any(
                    column[1] == primary[0] and column[2].upper() == "INTEGER" for column in columns
                ):
                    keys[shown] = primary[0]
                    result.setdefault(shown, set()).add(primary[0])
            for name, (shown, _) in self._tables.items():
                for foreign in connection.exec_driver_sql(f"PRAGMA foreign_key_list({name})"):
                    if foreign[2] in keys:
                        result.setdefault(shown, set()).add(foreign[3])
        return result

    def backend(self, connection: Connection) -> int | None:
        """The number of the server's process behind a connection; None for a file."""
        return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() if self.is_server else None

    def kill(self, backend: int | None) -> None:
        """End a server's process, and return when it is gone."""
        if backend is None:
            return
        with self._engine.connect() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
            there = "SELECT pg_stat_clear_snapshot(), pg_sleep(0.005) FROM pg_stat_activity WHERE pid = :pid"
            while connection.execute(text(there), {"pid": backend}).first() is not None:
                pass

    def is_waiting(self, backend: int | None) -> bool:
        """Whether the server's process waits for a lock."""
        if backend is None:
            return False
        with self._engine.connect() as connection:
            return bool(
                connection.execute(text("SELECT cardinality(pg_blocking_pids(:pid))"), {"pid": backend}).scalar()
            )

    def close(self) -> None:
        """Close its connections, and remove its copy."""
        self._engine.dispose()
        if self._folder is not None:
            self._folder.cleanup()

    def _find_tables(self) -> dict[str, tuple[str, list[str]]]:
        """Tables as SQL names them, parents first: their names for people, and their columns."""
        with self._engine.connect() as connection:
            if not self.is_server:
                quote = connection.dialect.identifier_preparer.quote_identifier
                names = connection.exec_driver_sql(_FILE_TABLES).scalars().all()
                return {
                    quote(name): (
                        name,
                        [quote(row[1]) for row in connection.exec_driver_sql(f"PRAGMA table_info({quote(name)})")],
                    )
                    for name in names
                }
            quote = connection.dialect.identifier_preparer.quote_identifier
            rows = {row.name: row for row in connection.execute(text(_TABLES))}
        with suppress(CycleError):
            rows = {
                name: rows[name] for name in TopologicalSorter({n: r.parents for n, r in rows.items()}).static_order()
            }
        return {name: (row.shown, [quote(each) for each in row.columns]) for name, row in rows.items()}

    def _read_server(self, connection: Connection) -> dict[str, list[StoredRow]]:
        rows: dict[str, list[StoredRow]] = {name: [] for name in self._tables}
        parts = (f"SELECT {index} AS n, CAST(to_jsonb(r) AS text) AS v, CAST(r AS text) AS raw FROM {name} AS r"
                 for index, name in enumerate(self._tables))  # fmt: skip
        names = list(self._tables)
        if names:
            for index, values, raw in connection.exec_driver_sql(" UNION ALL ".join(parts)):
                rows[names[index]].append(StoredRow(json.loads(values), raw))
        return rows

    def _read_file(self, connection: Connection) -> dict[str, list[StoredRow]]:
        rows = {}
        for name in self._tables:
            result = connection.exec_driver_sql(f"SELECT {', '.join(self._tables[name][1])} FROM {name}")
            keys = list(result.keys())
            rows[name] = [StoredRow(dict(zip(keys, row, strict=True)), tuple(row)) for row in result]
        return rows

    def _read_sequences(self, connection: Connection) -> dict[str, Any]:
        return {name: (value, called) for name, value, called in connection.execute(text(_SEQUENCES))}

    def shown(self, name: str) -> str:
        """The name of a table for people."""
        return self._tables[name][0]


def _raws(rows: list[StoredRow]) -> Counter[Any]:
    return Counter(row.raw for row in rows)
