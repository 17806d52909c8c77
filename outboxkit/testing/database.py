"""The database of a test: its rows are saved, read after each trial and put back, and its connections can be killed.

Rows are deleted and inserted as data: the tables themselves stay as they are.
"""

import fcntl
import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Integer,
    MetaData,
    QueuePool,
    Table,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from outboxkit import schema, tables
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.runtime import process, urls
from outboxkit.statements.dialects import has_one_writer, is_server
from outboxkit.testing.differences import Row, TableRows

LOCK = 0x6F7574626F78
"""The key of the advisory lock that a process holds while it tries a handler."""
CONNECTIONS = 8
ROWS_LIMIT = 10_000
"""A database with more rows is taken for one that is not for tests."""
_OURS = {table.name for table in tables.metadata.tables.values()} - {tables.outbox.name}
_NOT_COMPARED = {"position", "message_id", "created_at", "attempts", "last_error", "held", "first_failed_at"}
Contents = dict[str, list[Row]]
"""The rows of all tables, by their names in SQL."""


class _Table(NamedTuple):
    """A table: its name for people, its columns, the tables that it refers to, and the one with its saved rows.

    `only` leaves out the rows of tables that inherit from it.
    """

    shown: str
    columns: list[str]
    parents: list[str]
    saved: str = ""
    only: str = ""


_TABLES = """
    SELECT format('%I.%I', n.nspname, c.relname) AS name, CASE c.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END AS only,
           CASE WHEN n.nspname = current_schema() THEN c.relname ELSE n.nspname || '.' || c.relname END AS shown,
           array(SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
                  AND NOT attisdropped AND attgenerated = '' ORDER BY attnum) AS columns,
           array(SELECT format('%I.%I', fn.nspname, f.relname) FROM pg_constraint AS k
                   JOIN pg_class AS f ON f.oid = k.confrelid JOIN pg_namespace AS fn ON fn.oid = f.relnamespace
                  WHERE k.conrelid = c.oid AND k.contype = 'f' AND f.oid <> c.oid) AS parents
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
       AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
       AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
     ORDER BY 1
"""
_TRIGGERS = """
    SELECT replace(format('ALTER TABLE %s DISABLE TRIGGER %I', tgrelid::regclass, tgname), '%', '%%'),
           replace(format('ALTER TABLE %s ENABLE TRIGGER %I', tgrelid::regclass, tgname), '%', '%%')
      FROM pg_trigger JOIN pg_class AS c ON c.oid = tgrelid
     WHERE NOT tgisinternal AND tgenabled = 'O' AND tgparentid = 0 AND pg_has_role(c.relowner, 'USAGE')
"""
_SEQUENCES = """
    SELECT format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value IS NOT NULL
      FROM pg_sequences
"""


class TrialDatabase:
    """A database whose rows are saved, compared and put back.

    Args:
        engine: the test's own. Of an SQLite database in memory a copy is taken.

    Raises:
        ConfigurationError: it is no engine, or its database cannot be used for this.
    """

    def __init__(self, engine: Any) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigurationError(
                f"engine is {engine!r}; an Engine or AsyncEngine is accepted, such as session.get_bind(). Several "
                "connections are used: commit the rows that the handler needs"
            )
        self.url, dialect = engine.url, engine.dialect.name
        if not is_server(dialect) and not has_one_writer(dialect):
            raise ConfigurationError(f"the engine is for {dialect!r}; postgresql and sqlite are supported")
        self.is_server = is_server(dialect)
        self._given: Engine | AsyncEngine | None = engine
        with ExitStack() as opened:
            if not self.is_server and _is_in_memory(self.url):
                self._copy_to_file(engine, opened)
            self._engine = self.sync_engine()
            opened.callback(self._engine.dispose)
            self._own = opened.enter_context(self._engine.connect())
            self._wait_for_others(opened)
            self._tables = self._check_tables()
            self._save()
            opened.callback(self._own.invalidate)  # what is locked and temporary goes with it
            self._opened = opened.pop_all()

    def _copy_to_file(self, engine: Engine | AsyncEngine, opened: ExitStack) -> None:
        """Take a copy of a database in memory: it has one connection, and several are needed."""
        if isinstance(engine, AsyncEngine):
            raise ConfigurationError(
                "the engine's database is in memory and asynchronous: it has one connection, in one event loop, and "
                "several transactions at once are needed. Give an engine for a file, such as tmp_path / 'test.db'"
            )
        folder, self._given = opened.enter_context(TemporaryDirectory(prefix="outboxkit-")), None
        self.url = make_url(f"sqlite:///{Path(folder) / 'copy.db'}")
        target = create_engine(self.url)
        with closing(engine.raw_connection()) as source, closing(target.raw_connection()) as copy:
            source.driver_connection.backup(copy.driver_connection)  # type: ignore[union-attr]
        target.dispose()

    def sync_engine(self) -> Engine:
        """A new engine for handlers that are plain functions, with connections of its own."""
        if isinstance(self._given, Engine):
            engine = _copy_of(self._given, QueuePool)
        else:
            driver = process.ASYNC_DRIVERS[self.url.get_backend_name()].removesuffix("+aiosqlite")
            engine = create_engine(self.url.set(drivername=driver), pool_size=CONNECTIONS)
        if not self.is_server and not engine.dispatch.begin:  # it may begin itself, as SQLAlchemy's recipe does
            _begin_immediately(engine)
        return engine

    def async_engine(self) -> AsyncEngine:
        """A new engine for handlers that are coroutine functions, with connections of its own."""
        if isinstance(self._given, AsyncEngine) and self.is_server:
            return AsyncEngine(_copy_of(self._given.sync_engine, AsyncAdaptedQueuePool))
        return process.engine(
            self.url.render_as_string(hide_password=False), name="outboxkit.testing", pool_size=CONNECTIONS
        )

    def _wait_for_others(self, opened: ExitStack) -> None:
        """Wait until no other process of tests uses this database; others wait from now on until it is closed."""
        if self.is_server:
            self._own.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
        else:
            name = hashlib.sha256(str(Path(self.url.database or "").resolve()).encode()).hexdigest()[:16]
            file = opened.enter_context((Path(gettempdir()) / f"outboxkit-{name}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)

    def _check_tables(self) -> dict[str, _Table]:
        """The tables as SQL names them, parents first. Raises ConfigurationError if outboxkit's are not there."""
        try:
            schema.check(self._own)
        except SchemaError as error:
            raise ConfigurationError(
                f"the database of the test, {urls.shown(self.url)}, cannot be used: {error}. In a test, "
                "outboxkit.metadata.create_all(engine) creates the tables, or the fixture outboxkit_database has them"
            ) from error
        found: dict[str, _Table] = {}
        if self.is_server:
            for row in self._own.execute(text(_TABLES)):
                name, *names = (each.replace("%", "%%") for each in (row.name, *row.columns))  # for the driver
                referred = [each.replace("%", "%%") for each in row.parents]
                found[name] = _Table(row.shown, names, referred, only=row.only)
        quote = self._own.dialect.identifier_preparer.quote_identifier
        self._file_tables = self._reflect()
        for table in self._file_tables:
            columns = [quote(column.name) for column in table.columns if column.computed is None]
            parents = {quote(key.column.table.name) for key in table.foreign_keys} - {quote(table.name)}
            found[quote(table.name)] = _Table(table.name, columns, sorted(parents))
        with suppress(CycleError):
            order = TopologicalSorter({name: table.parents for name, table in found.items()}).static_order()
            found = {name: found[name] for name in order}
        return {name: table._replace(saved=f"outboxkit_saved_{n}") for n, (name, table) in enumerate(found.items())}

    def _reflect(self) -> Collection[Table]:
        """The tables of a file, with those that hold an index of words, in place of it; none of a server."""
        metadata = MetaData()
        if self.is_server:
            return ()
        virtual = "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'"
        left_out = set(self._own.exec_driver_sql(virtual).scalars())
        with warnings.catch_warnings(action="ignore", category=SAWarning):  # of indexes and types that it does not know
            metadata.reflect(self._own, only=lambda name, _: name not in left_out)
        return metadata.tables.values()

    def _save(self) -> None:
        """Keep the rows in temporary tables. Raises ConfigurationError: there are too many for a database of tests."""
        self._own.commit()  # a file has one transaction at a time
        self._start = self.read()
        if (count := sum(map(len, self._start.values()))) > ROWS_LIMIT:
            raise ConfigurationError(
                f"the database {self.url.render_as_string()} has {count} rows; up to {ROWS_LIMIT} are accepted, "
                "because its tables are emptied and filled again. Give an engine of a database for tests"
            )
        for name, table in self._tables.items():
            self._own.exec_driver_sql(f"CREATE TEMP TABLE {table.saved} AS SELECT * FROM {table.only}{name}")
        self._numbers = self._own.execute(text(_SEQUENCES)).all() if self.is_server else []
        self._own.commit()

    def read(self) -> Contents:
        """The rows of all tables."""
        contents: Contents = {name: [] for name in self._tables}
        with self._engine.connect() as connection:
            if self.is_server:
                row = "outboxkit_row"  # no column of an application has this name
                parts = (f"SELECT {index} AS n, CAST(to_jsonb({row}) AS text) AS v FROM {table.only}{name} AS {row}"
                         for index, (name, table) in enumerate(self._tables.items()))  # fmt: skip
                names = list(self._tables)
                try:
                    connection.execute(text("SET LOCAL lock_timeout = '5s'"))
                    rows = connection.exec_driver_sql(" UNION ALL ".join(parts)).all()
                except DBAPIError as error:
                    raise ConfigurationError(f"the rows cannot be read: {_reason(error)}") from error
                for index, values in rows:
                    contents[names[index]].append(json.loads(values))
                return contents
            for name, table in self._tables.items():
                result = connection.exec_driver_sql(f"SELECT {', '.join(table.columns)} FROM {name}")
                contents[name] = [dict(row) for row in result.mappings()]
        return contents

    def state(self) -> TableRows:
        """The rows as they are compared: outboxkit's own bookkeeping left out, messages as what they say."""
        state: dict[str, list[Row]] = {}
        for name, rows in self.read().items():
            shown = self._tables[name].shown
            if (plain := shown.rpartition(".")[2]) not in _OURS:
                state[shown] = [_message(row) for row in rows] if plain == tables.outbox.name else rows
        return state

    def restore(self, *, numbers: bool = False) -> None:
        """Put the rows back; in the end also the numbers that the database will give next.

        Raises:
            ConfigurationError: another transaction has locked rows.
        """
        now = self.read()
        changed = self._with_referring(
            name for name, rows in now.items() if _counted(rows) != _counted(self._start[name])
        )
        try:
            with self._own.begin():
                if self.is_server:
                    self._own.execute(text("SET LOCAL lock_timeout = '5s'"))
                awake = self._let_triggers_rest()
                for name in reversed(changed):
                    self._own.exec_driver_sql(f"DELETE FROM {self._tables[name].only}{name}")
                for name in changed:
                    columns = ", ".join(self._tables[name].columns)
                    overriding = "OVERRIDING SYSTEM VALUE" if self.is_server else ""
                    saved = f"SELECT {columns} FROM {self._tables[name].saved}"
                    self._own.exec_driver_sql(f"INSERT INTO {name} ({columns}) {overriding} {saved}")
                for statement in awake:
                    self._own.exec_driver_sql(statement)
                for name, value, is_called in self._numbers if numbers else ():
                    values = {"name": name, "value": value, "called": is_called}
                    self._own.execute(text("SELECT setval(CAST(:name AS regclass), :value, :called)"), values)
        except DBAPIError as error:
            raise ConfigurationError(
                f"the rows of {', '.join(changed)} cannot be put back: {_reason(error)}"
            ) from error

    def _let_triggers_rest(self) -> Sequence[str]:
        """Let no trigger hear how rows are put back; the statements that end this in the same transaction."""
        if not self.is_server:
            _begin(self._own)  # else a driver may commit each DROP at once
            triggers = self._own.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all()
            quote = self._own.dialect.identifier_preparer.quote_identifier
            for name, _ in triggers:
                self._own.exec_driver_sql(f"DROP TRIGGER {quote(name)}")
            return [sql for _, sql in triggers]
        with suppress(DBAPIError), self._own.begin_nested():  # keys rest, too, if the role may
            self._own.execute(text("SET LOCAL session_replication_role = replica"))
            return []
        with suppress(DBAPIError), self._own.begin_nested():  # of tables that it owns
            statements = self._own.execute(text(_TRIGGERS)).all()
            for rest, _ in statements:
                self._own.exec_driver_sql(rest)
            return ["SET CONSTRAINTS ALL IMMEDIATE", *(wake for _, wake in statements)]
        return []

    def _with_referring(self, names: Iterable[str]) -> list[str]:
        """The tables, and those that refer to them, parents first: a deletion may take the rows of these along."""
        chosen = set(names)
        while more := {name for name, table in self._tables.items() if chosen.intersection(table.parents)} - chosen:
            chosen |= more
        return [name for name in self._tables if name in chosen]

    def shadow(self, connection: Connection, contents: Contents) -> list[str]:
        """Let a connection to a file read these rows; the names of the temporary tables that hold them."""
        names = [name for name, table in self._tables.items() if not table.shown.startswith("outboxkit_")]
        for name in names:
            columns, marks = ", ".join(self._tables[name].columns), ", ".join("?" for _ in self._tables[name].columns)
            connection.exec_driver_sql(f"CREATE TEMP TABLE {name} AS SELECT {columns} FROM main.{name} WHERE false")
            for row in contents[name]:
                connection.exec_driver_sql(f"INSERT INTO temp.{name} VALUES ({marks})", tuple(row.values()))
        return names

    def numbered(self) -> dict[str, set[str]]:
        """The columns with numbers that a file may give to its rows, and those that refer to them: none on a server."""
        keys = (list(table.primary_key) for table in self._file_tables)
        numbers = {key[0] for key in keys if len(key) == 1 and isinstance(key[0].type, Integer)}
        result: dict[str, set[str]] = {}
        for column in (column for table in self._file_tables for column in table.columns):
            if column in numbers or any(foreign.column in numbers for foreign in column.foreign_keys):
                result.setdefault(column.table.name, set()).add(column.name)
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
            blocking = text("SELECT cardinality(pg_blocking_pids(:pid))")
            return bool(connection.execute(blocking, {"pid": backend}).scalar())

    def close(self) -> None:
        """Close its connections, and remove its copy."""
        self._opened.close()


def _reason(error: DBAPIError) -> str:
    return f"{str(error.orig).splitlines()[0]}. If a session of the test is in a transaction, commit it before"


def _is_in_memory(url: URL) -> bool:
    name = url.database or ":memory:"
    return ":memory:" in name or "mode=memory" in name or url.query.get("mode") == "memory"


def _copy_of(engine: Engine, pool: Any) -> Engine:
    """The same engine, with its listeners, and with connections of its own."""
    creator, dialect = engine.pool._creator, engine.dialect  # noqa: SLF001 - it has the arguments of the engine
    connections = pool(creator, pool_size=CONNECTIONS, _dispatch=engine.pool.dispatch, dialect=dialect)
    copy = Engine(connections, dialect, engine.url, hide_parameters=engine.hide_parameters)
    copy.dispatch = copy.dispatch._join(engine.dispatch)  # noqa: SLF001
    return copy.execution_options(**engine.get_execution_options()) if engine.get_execution_options() else copy


def _begin_immediately(engine: Engine) -> None:
    """Let transactions on a file take its lock at their start, as those of a consumer do."""

    @event.listens_for(engine, "connect")
    def _settle_in(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    event.listen(engine, "begin", _begin)


def _begin(connection: Any) -> None:
    if not connection.connection.driver_connection.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _counted(rows: list[Row]) -> Counter[str]:
    return Counter(map(repr, rows))


def _message(values: Row) -> Row:
    """A row of the outbox as what it says."""
    row = {name: value for name, value in values.items() if name not in {*_NOT_COMPARED, "payload", "headers"}}
    for name in ("payload", "headers"):
        row.update(_flat(name, document(values[name])))
    return row


def document(value: Any) -> Any:
    """The JSON of a column with bytes; what is not JSON is compared as it is."""
    raw = bytes.fromhex(value[2:]) if isinstance(value, str) and value.startswith("\\x") else value
    try:
        return json.loads(raw)
    except ValueError:
        return repr(raw)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}", each)
    else:
        yield name, value
