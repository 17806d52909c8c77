"""Engines: the common part of outboxkit's own ones, and a synchronous engine beside an asynchronous one."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from sqlalchemy import Engine, ExceptionContext, NullPool, QueuePool, create_engine, event

from outboxkit.database.session_settings import set_in_sessions
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors import ConfigurationError
from outboxkit.errors.sqlstates import note_role
from outboxkit.runtime import urls
from outboxkit.statements.dialects import has_one_writer, snapshot_options

SQLITE_BUSY_SECONDS = 30
"""The time for which a transaction on SQLite waits for the one writer before it."""
_CURE = (
    "handlers that are a plain def run in threads, and no synchronous engine for them can be made from {}. Set "
    "thread_engine to one of your own, or mark them with @inbox_handler(..., in_loop=True)"
)


def configure_sqlite(engine: Engine, *, begin: str = "BEGIN IMMEDIATE") -> None:
    """Have every transaction of this engine on SQLite take the writer lock at its start, or begin in this way."""

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin only before the first write, after the first read

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)


def name_roles(engine: Engine) -> None:
    """Have an error of a missing right name the role."""

    @event.listens_for(engine, "handle_error")
    def _name(context: ExceptionContext) -> None:
        error, connection = context.sqlalchemy_exception, context.connection
        if error is not None and connection is not None and context.engine is not None:
            note_role(error, context.engine.url.query, connection.connection.driver_connection)


READER = {"application_name": "outboxkit metrics", "connect_timeout": 3, "tcp_user_timeout": 3000}
"""Parameters of connections that read gauges, with short limits. The last one is in milliseconds."""


def snapshot(engine: AsyncEngine) -> AsyncEngine:
    """This engine, whose transactions on PostgreSQL read one state of the database, and write nothing."""
    return engine.execution_options(**snapshot_options(engine.dialect.name))


async def reader_beside(engine: AsyncEngine) -> Engine:
    """A synchronous engine that reads the database of an asynchronous one, with one connection, and waits for no lock.

    Raises:
        ConfigurationError, sqlalchemy.exc.DBAPIError: as of `beside`.
    """
    if has_one_writer(engine.dialect.name):
        target = engine.url.set(drivername="sqlite", database=_file_of(engine))
        return create_engine(target, poolclass=NullPool, connect_args={"timeout": 1}, hide_parameters=True)
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "hide_parameters": True}
    return await _on_server(engine, options, READER)


async def beside(engine: AsyncEngine, *, pool_size: int) -> Engine:
    """A synchronous engine on the database of an asynchronous one, with the same parameters of its connections.

    It takes over all parameters of a connection: TLS, options, names, adapters, the time zone, the format of dates. It
    does not take over what the application has registered for events, and what it gave to `create_async_engine` beside
    connect arguments. The pool keeps `pool_size` connections, and opens as many more as are needed.

    Raises:
        ConfigurationError: the driver is another one than psycopg or aiosqlite, or the database is in memory.
    """
    options: dict[str, Any] = {
        "poolclass": QueuePool,
        "pool_size": pool_size,
        "max_overflow": -1,
        "hide_parameters": engine.sync_engine.hide_parameters,
        "execution_options": dict(engine.sync_engine.get_execution_options()),
    }
    if has_one_writer(engine.dialect.name):
        twin = _on_sqlite(engine, options)
    else:
        twin = await _on_server(engine, options)
    return twin


def _file_of(engine: AsyncEngine) -> str:
    name = engine.url.database or ""
    if not name or ":memory:" in name or "memory" in (name.partition("mode=")[2], engine.url.query.get("mode")):
        raise ConfigurationError(_CURE.format(f"{urls.shown(engine.url)}, whose tables are in one connection"))
    return name


def _on_sqlite(engine: AsyncEngine, options: dict[str, Any]) -> Engine:
    target = engine.url.set(drivername="sqlite", database=_file_of(engine))
    twin = create_engine(target, connect_args={"timeout": SQLITE_BUSY_SECONDS}, **options)
    configure_sqlite(twin)
    return twin


async def _on_server(
    engine: AsyncEngine, options: dict[str, Any], changes: Mapping[str, Any] = MappingProxyType({})
) -> Engine:
    if engine.dialect.driver != "psycopg":
        raise ConfigurationError(_CURE.format(f"the driver {engine.dialect.driver!r}"))
    from psycopg.adapt import AdaptersMap  # noqa: PLC0415 - SQLite does without

    from outboxkit.database.connections import ThreadConnection, name_apart, part_with_silent  # noqa: PLC0415

    async with engine.connect() as connection:  # once it is given back, the pool may close it
        driver: Any = (await connection.get_raw_connection()).driver_connection
        parameters: dict[str, Any] = driver.info.get_parameters()
        if driver.info.password:
            parameters["password"] = driver.info.password
        settings = {name: driver.info.parameter_status(name) for name in ("TimeZone", "DateStyle")}
        adapters = SimpleNamespace(adapters=AdaptersMap(driver.adapters), connection=None)
        connect = partial(ThreadConnection.connect, "", prepare_threshold=driver.prepare_threshold, context=adapters)
    parameters.pop("hostaddr", None)  # one address of the host, or of one host of several: looked up at each connect
    _, of_url = engine.dialect.create_connect_args(engine.url)
    parameters |= {name: of_url[name] for name in ("host", "port") if name in of_url}
    parameters |= changes
    at_connect = getattr(engine.dialect, "_on_connect_isolation_level", None)  # what create_async_engine was given
    if at_connect is not None:
        options["isolation_level"] = at_connect
    twin = create_engine(engine.url, creator=partial(connect, **parameters), **options)

    @event.listens_for(twin, "connect")
    def _name(connection: Any, _: Any) -> None:
        name_apart(connection)

    set_in_sessions(twin, **settings)
    part_with_silent(twin)
    return twin
