"""What every outboxkit process needs around its service: engine, broker, log, signals, a deadline for stopping."""

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import URL, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from outboxkit import lifetime, logs
from outboxkit.brokers import DEFAULT_DELAYS, Publisher, Subscriber
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.codec import MAX_PAYLOAD_BYTES
from outboxkit.errors import ConfigurationError
from outboxkit.transaction import ALTERED

ASYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}
SQLITE_BUSY_SECONDS = 30
MEMORY = "memory:"
SILENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""After how long a database that does not answer any more is given up, also in the middle of a statement: half a
minute instead of the operating system's hours. In seconds, the last in milliseconds; the URL may say otherwise."""
LOCK_TIMEOUT = "'2s'"
"""A relay never waits for rows, but for a table that is altered: that waits for its one transaction, which would wait
for its other one, which waits for the table."""
ROUNDS = 8
"""How many batches of requests, each as many as may be open at once, a relay of an HTTP destination claims."""
LEAVING = timedelta(seconds=5)
"""What a relay may need, beside its two publishes, to leave a broker that does not answer and to settle."""
configure_log = logs.configure_log
run, leave = lifetime.run, lifetime.leave


def engine(url: str, *, name: str, pool_size: int = 5, idle_in_transaction: timedelta | None = None) -> AsyncEngine:
    """An async engine for a process of outboxkit, whatever driver the URL names.

    On PostgreSQL its connections are called `name`, their times are in UTC whatever the server says, they notice a
    server that fell silent, and the server ends one that leaves a transaction idle for longer than
    `idle_in_transaction`: a relay whose machine froze gives its rows back. On SQLite every transaction takes the
    writer lock at its start, and the database is in WAL mode, so that readers are not held up.

    Raises:
        ConfigurationError: neither PostgreSQL nor SQLite.
    """
    target = make_url(url)
    driver = ASYNC_DRIVERS.get(target.get_backend_name())
    if driver is None:
        raise ConfigurationError(f"{target.get_backend_name()!r} is not supported; postgresql and sqlite are")
    target = target.set(drivername=driver)
    if driver.startswith("sqlite"):
        return _sqlite(target)
    from outboxkit.connections import Connection  # noqa: PLC0415 - psycopg, which SQLite does without
    from outboxkit.moments import read_bounded  # noqa: PLC0415

    limits = {given: value for given, value in SILENCE.items() if given not in target.query}
    made = create_async_engine(
        target,
        pool_size=pool_size,
        max_overflow=2,
        hide_parameters=True,
        connect_args={"application_name": name, "async_creator_fn": Connection.connect, **limits},
    )
    event.listen(made.sync_engine, "connect", lambda connection, _: read_bounded(connection.driver_connection))
    event.listen(made.sync_engine, "checkin", _part_with_altered)
    _set(made, timezone="'UTC'")
    if idle_in_transaction is not None:
        _set(made, idle_in_transaction_session_timeout=str(round(idle_in_transaction.total_seconds() * 1000)))
    return made


def _part_with_altered(_: Any, record: ConnectionPoolEntry) -> None:
    """The next one who asks for this connection gets a new one: a `SET` in a handler would be its own, too."""
    if record.info.pop(ALTERED, False):
        record.invalidate(soft=True)


def relay_engine(url: str, *, publish_timeout: timedelta) -> AsyncEngine:
    """The engine for a relay, which holds its batches by transactions and claims through indexes only.

    A claim is prepared once and planned for good, perhaps when the outbox was empty. A sequential scan is right then,
    and a disaster with a million rows, so that the relay's sessions do without.

    Raises:
        ConfigurationError: neither PostgreSQL nor SQLite.
    """
    made = engine(url, name="outboxkit relay", idle_in_transaction=publish_timeout * 3 + LEAVING)
    if made.dialect.name == "postgresql":
        _set(made, enable_seqscan="off", enable_bitmapscan="off", lock_timeout=LOCK_TIMEOUT)
    return made


def _set(made: AsyncEngine, **parameters: str) -> None:
    """Set these parameters of PostgreSQL in every session of the engine."""

    @event.listens_for(made.sync_engine, "connect")
    def _set_all(connection: Any, _: Any) -> None:
        for name, value in parameters.items():
            connection.cursor().execute(f"SET {name} = {value}")
        connection.commit()


def _sqlite(target: URL) -> AsyncEngine:
    made = create_async_engine(target, hide_parameters=True, connect_args={"timeout": SQLITE_BUSY_SECONDS})

    @event.listens_for(made.sync_engine, "do_connect")
    def _try_to_open(_: Any, __: Any, arguments: Any, options: Any) -> None:
        # Where aiosqlite cannot open the file it leaves a thread, which later speaks to an event loop that is gone.
        sqlite3.connect(arguments[0], uri=bool(options.get("uri"))).close()

    @event.listens_for(made.sync_engine, "connect")
    def _settle_in(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin only before the first write, after the first read
        connection.cursor().execute("PRAGMA journal_mode = WAL")

    @event.listens_for(made.sync_engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return made


@dataclass(frozen=True, slots=True)
class Requests:
    """How an HTTP destination is spoken to.

    Attributes:
        concurrency: requests that are open at once.
        authorization: the Authorization header.
        secret: a secret of Standard Webhooks, `whsec_…`: requests are signed with it.
        cloudevents: whether requests carry the headers of CloudEvents.
        max_answer: the longest answer that can be kept as a reply, in bytes.
    """

    concurrency: int = 8
    authorization: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    cloudevents: bool = False
    max_answer: int = MAX_PAYLOAD_BYTES

    def rows(self, wanted: int) -> int:
        """How many rows a relay claims at once, at most: what can be sent while others wait for the rows."""
        return min(wanted, ROUNDS * self.concurrency)


def publisher(
    url: str, *, exchange: str, timeout: timedelta, app_id: str = "outboxkit", requests: Requests | None = None
) -> Publisher:
    """The publisher for a broker URL, or for the URL of an HTTP destination.

    `memory://` is one broker for the whole process, and for no other. An HTTP publisher needs up to twice the timeout.

    Raises:
        ConfigurationError: an HTTP destination, and httpx is not installed.
    """
    if is_http(url):
        return _http_publisher(url, timeout=timeout, source=app_id, requests=requests or Requests())
    if url.startswith(MEMORY):
        return MemoryPublisher(_memory_broker(url))
    from outboxkit.brokers.rabbitmq import RabbitPublisher  # noqa: PLC0415 - a broker is imported when it is used

    return RabbitPublisher(url, exchange=exchange, timeout=timeout, app_id=app_id)


def is_http(url: str) -> bool:
    """Whether this is the URL of an HTTP destination, which has no queues."""
    return url.lower().startswith(("http://", "https://"))


def _http_publisher(url: str, *, timeout: timedelta, source: str, requests: Requests) -> Publisher:
    try:
        from outboxkit.brokers.http import HttpPublisher  # noqa: PLC0415 - httpx is an extra
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        needed = "pip install outboxkit[http]"
        raise ConfigurationError(f"OUTBOXKIT_BROKER_URL is an HTTP URL, which needs httpx: {needed}") from None
    return HttpPublisher(url, timeout=timeout, source=source, **asdict(requests))


def refuse_http(url: str) -> None:
    """Nothing but a relay can use an HTTP destination.

    Raises:
        ConfigurationError: it is the URL of one.
    """
    if is_http(url):
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is an HTTP URL, a destination for `outboxkit relay` alone; amqp://… is accepted here"
        )


def queue_publisher(url: str, queue: str, *, timeout: timedelta, app_id: str = "outboxkit") -> Publisher:
    """A publisher past every binding, to one queue that exists.

    Raises:
        ConfigurationError: `memory://` has no queues but those of this process, and an HTTP destination has none.
    """
    refuse_http(url)
    if url.startswith(MEMORY):
        raise ConfigurationError("OUTBOXKIT_BROKER_URL is memory://, a broker inside one process; amqp://… is accepted")
    from outboxkit.brokers.rabbitmq import QueuePublisher  # noqa: PLC0415 - a broker is imported when it is used

    return QueuePublisher(url, queue, timeout=timeout, app_id=app_id)


def subscriber(
    url: str,
    queue: str,
    *,
    exchange: str,
    topics: Sequence[str],
    prefetch: int = 64,
    delays: Sequence[timedelta] = DEFAULT_DELAYS,
    ordered: bool = False,
) -> Subscriber:
    """The subscriber for a broker URL; `ordered`: only one consumer of the queue gets messages at a time.

    Raises:
        ConfigurationError: an HTTP destination has no queues.
    """
    refuse_http(url)
    if url.startswith(MEMORY):
        return MemorySubscriber(_memory_broker(url), queue, topics, delays)
    from outboxkit.brokers.rabbitmq import RabbitSubscriber  # noqa: PLC0415 - a broker is imported when it is used

    return RabbitSubscriber(
        url, queue, exchange=exchange, topics=topics, prefetch=prefetch, delays=delays, ordered=ordered
    )


@cache
def _memory_broker(url: str) -> MemoryBroker:  # noqa: ARG001 - its identity: who names the same URL meets there
    return MemoryBroker()
