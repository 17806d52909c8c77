"""Deployments: on the shared servers, and on servers that a test may stop."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.deployment import Deployment
from tests.servers import Server, create_database, drop_database
from tests.support.databases import migrate
from tests.support.delays import DELAYS_TEXT
from tests.support.plain_client import PlainClient


@pytest.fixture
def deployment(postgresql_url: str, broker: PlainClient, tmp_path: Path) -> Iterator[Deployment]:
    """A new database, exchange and queue on the shared servers."""
    made = Deployment(postgresql_url, broker, tmp_path)
    yield made
    made.close()


@pytest.fixture
def on_own_postgresql(own_postgresql: Server, broker: PlainClient, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment whose PostgreSQL may be stopped; it is started again afterwards."""
    name = f"outboxkit_{secrets.token_hex(6)}"
    url = create_database(own_postgresql.url, name)
    migrate(url)
    made = Deployment(url, broker, tmp_path)
    yield made
    made.close()
    own_postgresql.start()
    drop_database(own_postgresql.url, name)


@pytest.fixture
def on_own_rabbitmq(own_rabbitmq: Server, postgresql_url: str, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment whose RabbitMQ may be stopped; it is started again afterwards."""
    client = PlainClient(own_rabbitmq.url)
    made = Deployment(postgresql_url, client, tmp_path)
    yield made
    made.close()
    own_rabbitmq.start()
    client.disconnect()
    client.clean_up(DELAYS_TEXT.split(","))
