"""The pytest plugin: fixtures with real servers. Nothing is imported before use."""

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

DATABASE, BROKER = "OUTBOXKIT_TEST_DATABASE_URL", "OUTBOXKIT_TEST_BROKER_URL"


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

    from outboxkit.schema import migrations  # noqa: PLC0415

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
