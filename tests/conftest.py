"""Fixtures: real servers, started once and where a test asks for them; a database and broker names for each test."""

import asyncio
import functools
import gc
import inspect
import logging
import os
import re
import secrets
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest
import sqlalchemy
import structlog
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.consumer.reports import Reports
from outboxkit.relay.relay import Relay
from outboxkit.runtime import lifetime, logs, process
from tests.servers import (
    POSTGRESQL,
    OwnServer,
    Server,
    create_database,
    drop_database,
    provide_own,
    provide_own_rabbitmq,
    provide_postgresql,
    provide_rabbitmq,
)
from tests.support.databases import DatabasePool, SqliteCopies
from tests.support.delays import DELAYS_TEXT
from tests.support.night import NIGHT, SEED, by_night
from tests.support.plain_client import PlainClient

S = TypeVar("S", bound=Server)

pytest.register_assert_rewrite("tests.acceptance")  # its helpers assert, too: a failure there says what was found

LONGEST_SECONDS = 500
BROKERS_OF_THEIR_OWN = frozenset({"admin", "cluster", "small_broker"})
"""Fixtures that start one."""

hypothesis.settings.register_profile("day", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.register_profile("night", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(by_night("night", else_="day"))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before 2.0.55, SQLAlchemy leaves a connection that is cancelled while it is set up to the garbage collector."""
    os.environ.pop("COLUMNS", None)  # no command folds its lines here
    if tuple(map(int, re.findall(r"\d+", sqlalchemy.__version__)[:3])) < (2, 0, 55):
        closed_late = ".*connections.Connection object at .* was deleted while still open"
        config.addinivalue_line("filterwarnings", f"ignore:{closed_late}:ResourceWarning")
        warnings.filterwarnings("ignore", closed_late, ResourceWarning)  # behind the last test


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end, so the garbage collector need not look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Before 3.11.8, Python fails to parse a failed test's source if a finalizer lets another thread parse one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of brokers of their own, so that one worker runs them and starts each broker once.

    Mark those that do more by night: the others have run with the coverage, in the same way.
    """
    items.sort(key=lambda item: BROKERS_OF_THEIR_OWN.isdisjoint(getattr(item, "fixturenames", ())))
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)
        if not vars(getattr(item, "module", object)).keys().isdisjoint(("by_night", "chance")):
            item.add_marker("drawn")


def _bounded(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., Coroutine[object, object, None]]:
    """A test that waits for ever fails where it waits, some time before the process is ended for it."""

    @functools.wraps(test)
    async def run(*arguments: object, **fixtures: object) -> None:
        async with asyncio.timeout(LONGEST_SECONDS):
            await test(*arguments, **fixtures)

    return run


def pytest_report_header() -> str:
    """Say by which random numbers a failure can be had again."""
    return f"random numbers of the seed {SEED}" + (f": make test-all SEED={SEED} has them again" if NIGHT else "")


@pytest.fixture(autouse=True)
def _nothing_unexpected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which relays or consumers meet an error of their own, which they survive, unless it is marked."""
    errors: list[BaseException] = []
    report, report_of_relay = Reports.unexpected, Relay._report_unexpected

    def noted(self: Reports, event: str, error: BaseException) -> None:
        errors.append(error)
        report(self, event, error)

    def noted_of_relay(self: Relay, error: BaseException) -> None:
        errors.append(error)
        report_of_relay(self, error)

    monkeypatch.setattr(Reports, "unexpected", noted)
    monkeypatch.setattr(Relay, "_report_unexpected", noted_of_relay)
    yield
    if request.node.get_closest_marker("unexpected") is None:
        assert errors == []


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """No test logs as an earlier one has configured it."""
    libraries = [logging.getLogger(name) for name in (*logs.SILENCED, "asyncio", "psycopg", None)]
    levels = [library.level for library in libraries]
    last_resort = logging.lastResort
    yield
    logging.lastResort = last_resort
    structlog.reset_defaults()
    for library, level in zip(libraries, levels, strict=True):
        library.setLevel(level)


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    """No test, and no process that one starts, ignores what an earlier command in this process ignored at its end."""
    handlers = {number: signal.getsignal(number) for number in lifetime.SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server for all tests that do not stop it."""
    yield from _running(provide_postgresql())


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Server]:
    """A RabbitMQ server for all tests that do not stop it."""
    yield from _running(provide_rabbitmq())


@pytest.fixture(scope="session")
def own_postgresql(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A PostgreSQL server that a test may stop, if it starts it again."""
    shared = request.getfixturevalue("postgresql")
    yield from [shared] if shared.controllable else _running(provide_own(POSTGRESQL))


@pytest.fixture(scope="session")
def own_rabbitmq(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A RabbitMQ server that a test may stop, if it starts it again, and configure, if it undoes that."""
    shared = request.getfixturevalue("rabbitmq")
    yield from [shared] if shared.controllable else _running(provide_own_rabbitmq())


@pytest.fixture(scope="session")
def pool(postgresql: Server) -> Iterator[DatabasePool]:
    """Databases with outboxkit's tables in the shared server."""
    pool = DatabasePool(postgresql)
    yield pool
    if not postgresql.controllable:  # one of our own is thrown away
        pool.close()


@pytest.fixture(scope="session")
def template(pool: DatabasePool) -> str:
    """The migrated database that others are copied from; nobody connects to it."""
    return pool.template


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> SqliteCopies:
    """Copies of one SQLite file with outboxkit's tables."""
    return SqliteCopies(tmp_path_factory.mktemp("migrated"))


@pytest.fixture
def empty_postgresql_url(postgresql: Server) -> Iterator[str]:
    """A new database without any table."""
    name = f"outboxkit_{secrets.token_hex(6)}"
    yield create_database(postgresql.url, name)
    drop_database(postgresql.url, name)


@pytest.fixture
def postgresql_url(pool: DatabasePool) -> Iterator[str]:
    """An empty database with outboxkit's tables."""
    url = pool.take()
    yield url
    pool.give_back(url)


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_sqlite: SqliteCopies) -> str:
    """A new SQLite file with outboxkit's tables."""
    return migrated_sqlite.copy(tmp_path / "outboxkit.db")


@pytest.fixture(params=["postgresql", "sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A new database with outboxkit's tables; the test runs once on PostgreSQL and once on SQLite."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A sync engine for `database_url`."""
    made = create_engine(database_url)
    yield made
    made.dispose()


@pytest.fixture
async def async_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """The async engine that outboxkit's own processes use, for `database_url`.

    A connection of SQLite that was broken off ends in a thread of its own, which may still want to tell the event loop.
    """
    before = set(threading.enumerate())
    made = process.engine(database_url, name="test")
    yield made
    await made.dispose()
    for thread in set(threading.enumerate()) - before:
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join, 5)


@pytest.fixture
def pg_engine(postgresql_url: str) -> Iterator[Engine]:
    """A sync engine for a new PostgreSQL database with outboxkit's tables.

    Whoever waits in an event loop for a lock that this loop holds fails after five minutes, and does not wait for ever.
    """
    made = create_engine(postgresql_url, connect_args={"options": "-c statement_timeout=5min"})
    yield made
    made.dispose()


@pytest.fixture
async def async_pg_engine(postgresql_url: str) -> AsyncIterator[AsyncEngine]:
    """The engine of outboxkit's own processes, for the same database as `pg_engine`."""
    made = process.engine(postgresql_url, name="test", pool_size=20)
    yield made
    await made.dispose()


@pytest.fixture
def broker(rabbitmq: Server) -> Iterator[PlainClient]:
    """A plain client of the shared RabbitMQ, with an exchange and a queue name of its own."""
    client = PlainClient(rabbitmq.url)
    yield client
    client.clean_up(DELAYS_TEXT.split(","))


def _running(server: S) -> Iterator[S]:
    server.start()
    yield server
    server.close()
