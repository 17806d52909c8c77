"""Databases with outboxkit's tables: migrated once, then copied, and used again where nothing but rows has changed."""

import secrets
import shutil
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import create_engine, make_url

from outboxkit.schema import migrations
from tests.servers import Server, create_database, drop_database

SHAPE = """
    SELECT md5(string_agg(line, '' ORDER BY line)) FROM (
        SELECT concat_ws(' ', oid, relkind, reloptions, relacl, relowner, relrowsecurity) AS line
          FROM pg_class WHERE oid >= 16384 AND relkind <> 't'
        UNION ALL SELECT concat_ws(' ', attrelid, attnum, xmin) FROM pg_attribute AS a
                   WHERE attrelid >= 16384 AND attnum > 0
                     AND NOT EXISTS (SELECT FROM pg_class WHERE oid = attrelid AND relkind = 't')
        UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_trigger
        UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_constraint WHERE oid >= 16384
        UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_proc WHERE oid >= 16384
        UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_namespace WHERE nspname !~ '^pg_(temp|toast)'
        UNION ALL SELECT setconfig::text FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
                   WHERE d.datname = current_database()
        UNION ALL SELECT gid FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL SELECT DISTINCT starelid || ' is analyzed' FROM pg_statistic WHERE starelid >= 16384
        UNION ALL SELECT schema_version::text FROM outboxkit_schema_version AS schema_version
    ) AS lines
"""
"""A digest of what a test may have changed in a database beside rows, save for the one of the tables' version.

A copy has the object ids of its original and the transaction ids of its catalog rows, so that none has to be named.
"""
FILLED = """
    SELECT oid::regclass::text FROM pg_class
     WHERE relkind = 'r' AND relname LIKE 'outboxkit%' AND relname <> 'outboxkit_schema_version'
       AND pg_relation_size(oid) > 0
"""
RESTART = """
    SELECT pg_stat_reset(), (SELECT count(setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false))
                               FROM pg_sequences WHERE last_value IS NOT NULL)
"""


def migrate(url: str) -> None:
    """Create outboxkit's tables, and leave no connection behind."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.migrate(connection)
    engine.dispose()


class SqliteCopies:
    """SQLite files with outboxkit's tables: copies of one that is migrated once."""

    def __init__(self, folder: Path) -> None:
        self._original = folder / "migrated.db"
        migrate(f"sqlite:///{self._original}")

    def copy(self, path: Path) -> str:
        """A new file at this place; its URL."""
        shutil.copyfile(self._original, path)
        return f"sqlite:///{path}"


class DatabasePool:
    """PostgreSQL databases with outboxkit's tables, which are emptied when they are given back.

    A database in which a test has changed more than rows and tables of its own is dropped instead.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.template = f"outboxkit_template_{secrets.token_hex(6)}"
        url = create_database(server.url, self.template)
        migrate(url)
        with _connect(url) as connection:
            self._shape = _shape(connection)
            self._tables = _tables(connection)
        self._free: list[str] = []
        self._all = {self.template}

    def take(self) -> str:
        """The URL of an empty database."""
        if self._free:
            return self._free.pop()
        name = f"outboxkit_{secrets.token_hex(6)}"
        self._all.add(name)
        return create_database(self._server.url, name, template=self.template)

    def give_back(self, url: str) -> None:
        """Empty the database for the next test; connections that are still open to it end."""
        with _connect(url) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                               "WHERE datname = current_database() AND pid <> pg_backend_pid()")  # fmt: skip
            reusable = self._empty(connection)
        if reusable:
            self._free.append(url)
        else:
            self._drop(make_url(url).database or "")

    def close(self) -> None:
        """Drop all of them."""
        for name in tuple(self._all):
            self._drop(name)

    def _empty(self, connection: psycopg.Connection) -> bool:
        own = _tables(connection)
        for table in own - self._tables:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.SQL(table)))
        if not self._tables <= own or _shape(connection) != self._shape:
            return False
        if filled := [sql.SQL(name) for (name,) in connection.execute(FILLED)]:
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(",").join(filled)))
        connection.execute(RESTART)
        return True

    def _drop(self, name: str) -> None:
        drop_database(self._server.url, name)
        self._all.discard(name)


def _connect(url: str) -> psycopg.Connection:
    conninfo = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(conninfo, autocommit=True)


def _shape(connection: psycopg.Connection) -> str:
    return connection.execute(SHAPE).fetchone()[0]


def _tables(connection: psycopg.Connection) -> set[str]:
    """Tables that are no partitions, as SQL names them; not temporary ones, which go with their sessions."""
    asked = (
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition "
        "AND relpersistence <> 't' "
        "AND relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)"
    )
    return {name for (name,) in connection.execute(asked)}
