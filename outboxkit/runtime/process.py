"""The surroundings of a service: its engines, publishers and subscribers."""

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import URL, event, make_url

from outboxkit import defaults
from outboxkit.brokers import Publisher, Subscriber
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.database import engines
from outboxkit.database.session_names import relay_name
from outboxkit.database.session_settings import set_in_sessions
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine, create_async_engine
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.runtime import lifetime, logs
from outboxkit.statements.dialects import DRIVERS

ASYNC_DRIVERS = {backend: f"{backend}+{driver}" for backend, driver in DRIVERS.items()}
MEMORY = "memory:"
SILENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Limits for a network that lets nothing through: half a minute instead of the operating system's hours. They hold in
the middle of a statement, too. In seconds, the last in milliseconds; the URL may say otherwise. For a peer that
acknowledges and does not answer there is `silence`."""
LOCK_TIMEOUT = "2s"
"""The limit for a table that is being altered; a relay never waits for rows. The ALTER waits for one transaction of the
relay. That transaction would wait for the relay's second one, which waits for the table."""
LEAVING = timedelta(seconds=5)
"""Time for a relay, beside three publishes, to leave a broker that does not answer and to settle.

A batch that is claimed ahead is idle during the publish of the one before, and then during its own. The third is a
reserve.
"""
configure_log = logs.configure_log
run, leave = lifetime.run, lifetime.leave


def engine(
    url: str,
    *,
    name: str,
    pool_size: int = 5,
    idle_in_transaction: timedelta | None = None,
    only_reads: bool = False,
) -> AsyncEngine:
    """An async engine for a process of outboxkit, whatever driver the URL names.

    On PostgreSQL its connections are called `name`. Their times are in UTC and in the format that the driver reads,
    whatever the server, the database or the role has set. They notice a server that fell silent, and prepare statements
    under names of their own. The server ends one that leaves a transaction idle for longer than `idle_in_transaction`:
    a relay whose machine froze gives its rows back.

    On SQLite every transaction takes the writer lock at its start, unless the engine `only_reads`. The database is in
    WAL mode, so that readers are not held up.

    Raises:
        ConfigurationError: neither PostgreSQL nor SQLite.
    """
    target = make_url(url)
    driver = ASYNC_DRIVERS.get(target.get_backend_name())
    if driver is None:
        raise ConfigurationError(f"{target.get_backend_name()!r} is not supported; postgresql and sqlite are")
    target = target.set(drivername=driver)
    if driver.startswith("sqlite"):
        return _sqlite(target, begin="BEGIN" if only_reads else "BEGIN IMMEDIATE")
    from outboxkit.database.connections import (  # noqa: PLC0415 - psycopg, which SQLite does without
        Connection,
        name_apart,
        part_with_silent,
    )
    from outboxkit.database.driver_rows import read_bounded  # noqa: PLC0415

    limits = {option: value for option, value in SILENCE.items() if option not in target.query}
    engine = create_async_engine(
        target,
        pool_size=pool_size,
        max_overflow=2,
        hide_parameters=True,
        connect_args={
            "application_name": name,
            "async_creator_fn": Connection.connect,
            "client_encoding": "utf8",
            **limits,
        },
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        name_apart(connection.driver_connection)
        read_bounded(connection.driver_connection)

    engines.name_roles(engine.sync_engine)
    part_with_silent(engine.sync_engine)
    set_in_sessions(engine.sync_engine, timezone="UTC", datestyle="ISO")
    if idle_in_transaction is not None:
        milliseconds = str(round(idle_in_transaction.total_seconds() * 1000))
        set_in_sessions(engine.sync_engine, idle_in_transaction_session_timeout=milliseconds)
    return engine


def relay_engine(url: str, *, publish_timeout: timedelta, destination: str = DEFAULT_DESTINATION) -> AsyncEngine:
    """The engine for a relay, which holds its batches by transactions and claims through indexes only.

    Its sessions are named after the destination, by which `outboxkit doctor` can tell a destination without a relay.

    Nothing is prepared: a statement serves a batch, and is planned for the tables as they are. Statistics may be older,
    from an empty outbox, for which a sequential scan is right. The relay's sessions do without. They also do without
    JIT, which compiles for 50 ms what then runs for 10. And they read committed rows, also where the database's default
    is a stricter isolation, which would end their transactions for each other's rows.

    Raises:
        ConfigurationError: neither PostgreSQL nor SQLite.
    """
    connections = engine(url, name=relay_name(destination), idle_in_transaction=publish_timeout * 3 + LEAVING)
    if connections.dialect.name == "postgresql":

        @event.listens_for(connections.sync_engine, "connect")
        def _prepare_nothing(connection: Any, _: Any) -> None:
            connection.driver_connection.prepare_threshold = None

        set_in_sessions(
            connections.sync_engine,
            default_transaction_isolation="read committed",
            enable_seqscan="off",
            enable_bitmapscan="off",
            jit="off",
            lock_timeout=LOCK_TIMEOUT,
        )
    return connections


def reader(url: str, *, name: str, pool_size: int, timeout: str) -> AsyncEngine:
    """An async engine whose transactions read one state of the database and write nothing.

    PostgreSQL ends each of their statements after the timeout. Nothing is set for a whole session, which a pooler may
    give to others. On SQLite they do not hold up a writer.

    Raises:
        ConfigurationError: neither PostgreSQL nor SQLite.
    """
    target = make_url(url)
    if (driver := ASYNC_DRIVERS.get(target.get_backend_name(), "")).startswith("sqlite"):
        reading = _sqlite(target.set(drivername=driver), begin="BEGIN")

        @event.listens_for(reading.sync_engine, "connect")
        def _only_query(connection: Any, _: Any) -> None:
            connection.cursor().execute("PRAGMA query_only = ON")

        return reading
    connections = engine(url, name=name, pool_size=pool_size)

    @event.listens_for(connections.sync_engine, "begin")
    def _limit(connection: Any) -> None:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{timeout}'")

    return engines.snapshot(connections)


def _sqlite(target: URL, *, begin: str = "BEGIN IMMEDIATE") -> AsyncEngine:
    engine = create_async_engine(target, hide_parameters=True, connect_args={"timeout": engines.SQLITE_BUSY_SECONDS})

    @event.listens_for(engine.sync_engine, "do_connect")
    def _try_to_open(_: Any, __: Any, arguments: Any, options: Any) -> None:
        # If aiosqlite cannot open the file it leaves a thread, which later speaks to an event loop that is gone.
        sqlite3.connect(arguments[0], uri=bool(options.get("uri"))).close()

    # SQLAlchemy would stop the connection of a statement that is cancelled twice while aiosqlite closes it. That never
    # ends then, and no event loop that waits for its tasks would.
    engine.dialect.do_terminate = engine.dialect.do_close  # type: ignore[method-assign]
    engines.configure_sqlite(engine.sync_engine, begin=begin)

    @event.listens_for(engine.sync_engine, "connect")
    def _use_wal(connection: Any, _: Any) -> None:
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random  # noqa: PLC0415 - for SQLite

        # To change the mode of a file, SQLite itself does not wait for a writer. It locks even readers out until the
        # answer is fetched, so both are one call: the event loop may meanwhile belong to a reader who waits.
        retried = Retrying(
            retry=retry_if_exception(lambda error: getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY),
            wait=wait_random(0, 0.02),
            stop=stop_after_delay(engines.SQLITE_BUSY_SECONDS),
            reraise=True,
        )
        retried(connection.run_async, lambda driver: driver.execute_fetchall("PRAGMA journal_mode = WAL"))

    return engine


def publisher(
    url: str,
    *,
    exchange: str,
    timeout: timedelta,
    concurrency: int = defaults.CONCURRENCY,
    authorization: str | None = None,
    secret: str | None = None,
) -> Publisher:
    """The publisher for a broker URL, or for the URL of an HTTP destination, for which the last three arguments are.

    `memory://` is one broker for the whole process, and for no other. An HTTP publisher needs up to twice the timeout.

    Raises:
        ConfigurationError: an HTTP destination, and an argument cannot be used.
        ModuleNotFoundError: an HTTP destination, and httpx is not installed.
    """
    if is_http(url):
        with needs_extra("an HTTP URL as OUTBOXKIT_BROKER_URL"):
            from outboxkit.brokers.http import HttpPublisher  # noqa: PLC0415 - httpx is an extra
        return HttpPublisher(
            url,
            timeout=timeout,
            concurrency=concurrency,
            authorization=authorization,
            secret=secret,
        )
    if url.startswith(MEMORY):
        return MemoryPublisher(_memory_broker(url))
    from outboxkit.brokers.rabbitmq import RabbitPublisher  # noqa: PLC0415 - a broker is imported when it is used

    return RabbitPublisher(url, exchange=exchange, timeout=timeout)


def is_http(url: str) -> bool:
    """Whether this is the URL of an HTTP destination, which has no queues."""
    return url.lower().startswith(("http://", "https://"))


def refuse_http(url: str) -> None:
    """Nothing but a relay can use an HTTP destination.

    Raises:
        ConfigurationError: it is the URL of one.
    """
    if is_http(url):
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is an HTTP URL, a destination for `outboxkit relay` alone; amqp://… is accepted here"
        )


def queue_publisher(url: str, queue: str, *, timeout: timedelta) -> Publisher:
    """A publisher past every binding, to one queue that exists.

    Raises:
        ConfigurationError: `memory://` has no queues but those of this process, and an HTTP destination has none.
    """
    refuse_http(url)
    if url.startswith(MEMORY):
        raise ConfigurationError("OUTBOXKIT_BROKER_URL is memory://, a broker inside one process; amqp://… is accepted")
    from outboxkit.brokers.rabbitmq import RabbitPublisher  # noqa: PLC0415 - a broker is imported when it is used

    return RabbitPublisher(url, exchange="", queue=queue, timeout=timeout)


def subscriber(
    url: str,
    queue: str,
    *,
    exchange: str | None,
    topics: Sequence[str | tuple[str, str]],
    prefetch: int = defaults.PREFETCH,
    delays: Sequence[timedelta] = defaults.RETRY_DELAYS,
    ordered: bool = False,
    one_of: int = 1,
) -> Subscriber:
    """The subscriber for a broker URL; `ordered`: only one consumer of the queue gets messages at a time.

    `one_of` is the number of subscribers among which the process divides the bytes that it may hold unacked.

    Raises:
        ConfigurationError: an HTTP destination has no queues.
    """
    refuse_http(url)
    if url.startswith(MEMORY):
        return MemorySubscriber(_memory_broker(url), queue, [each for each in topics if isinstance(each, str)], delays)
    from outboxkit.brokers.rabbitmq import RabbitSubscriber  # noqa: PLC0415 - a broker is imported when it is used

    subscriber = RabbitSubscriber(
        url, queue, exchange=exchange, topics=topics, prefetch=prefetch, delays=delays, ordered=ordered
    )
    subscriber.max_unacked_bytes //= one_of
    return subscriber


@cache
def _memory_broker(url: str) -> MemoryBroker:  # noqa: ARG001 - its identity: who names the same URL meets there
    return MemoryBroker()
