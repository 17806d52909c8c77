"""The pytest plugin: fixtures that freeze ids and time, and that give real servers. Nothing is imported before use."""

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

FROZEN_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
DATABASE, BROKER = "OUTBOXKIT_TEST_DATABASE_URL", "OUTBOXKIT_TEST_BROKER_URL"
_WITH_CLOCK = ("outboxkit.outbox", "outboxkit.testing.inline")
"""The modules that ask for the time when a message is added or delivered inline."""


class FrozenTime:
    """A clock that stands until it is moved."""

    def __init__(self, moment: datetime) -> None:
        self.now = moment

    def advance(self, by: timedelta | float) -> datetime:
        """Move it on by seconds, or by a timedelta; the new time."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> FrozenTime:
    """The time at which messages are added, and the default of `deliver_all`: it stands until the test moves it."""
    from importlib import import_module  # noqa: PLC0415 - nothing is imported by a suite that does not use it

    clock = FrozenTime(FROZEN_AT)

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return clock.now.astimezone(tz)

    for name in _WITH_CLOCK:
        monkeypatch.setattr(import_module(name), "datetime", Frozen)
    return clock


@pytest.fixture
def frozen_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """New message ids count from 1: `019b796d-d600-7000-8000-000000000001` and so on, UUIDv7 of one moment."""
    from outboxkit import ids  # noqa: PLC0415

    milliseconds = f"{int(FROZEN_AT.timestamp() * 1000):012x}"
    count = 0

    def new(*, at: datetime | None = None) -> str:  # noqa: ARG001 - the signature of ids.new
        nonlocal count
        count += 1
        return f"{milliseconds[:8]}-{milliseconds[8:]}-7000-8000-{count:012x}"

    monkeypatch.setattr(ids, "new", new)


@pytest.fixture(scope="session")
def outboxkit_server() -> Iterator[str]:
    """The URL of a PostgreSQL server: `OUTBOXKIT_TEST_DATABASE_URL`, or a container of testcontainers."""
    if url := os.environ.get(DATABASE):
        yield url
        return
    postgres = _containers("postgres", DATABASE)
    with postgres.PostgresContainer("postgres:16-alpine", driver="psycopg") as container:
        yield container.get_connection_url()


@pytest.fixture(scope="session")
def outboxkit_broker() -> Iterator[str]:
    """The URL of a RabbitMQ server: `OUTBOXKIT_TEST_BROKER_URL`, or a container of testcontainers."""
    if url := os.environ.get(BROKER):
        yield url
        return
    rabbitmq = _containers("rabbitmq", BROKER)
    with rabbitmq.RabbitMqContainer("rabbitmq:4-alpine") as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(5672)
        yield f"amqp://{container.username}:{container.password}@{host}:{port}/"


@pytest.fixture
def outboxkit_database(outboxkit_server: str) -> Iterator[str]:
    """The URL of a new database of that server with outboxkit's tables; it is dropped after the test."""
    from sqlalchemy import create_engine, make_url, text  # noqa: PLC0415

    from outboxkit import migrations  # noqa: PLC0415

    name = f"outboxkit_{secrets.token_hex(6)}"
    server = create_engine(outboxkit_server, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = make_url(outboxkit_server).set(database=name).render_as_string(hide_password=False)
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.migrate(connection)
    engine.dispose()
    yield url
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


def _containers(name: str, variable: str) -> Any:
    from importlib import import_module  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own code: an error in a strict suite
        for module in (f"testcontainers.community.{name}", f"testcontainers.{name}"):  # the older name is the last
            with suppress(ImportError):
                return import_module(module)
    pytest.fail(f"no server: set {variable}, or pip install testcontainers[{name}] and have Docker running")
