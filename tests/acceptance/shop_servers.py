"""The servers of a shop: none, or real ones, with names of its own."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.servers import create_database, drop_database
from tests.support.plain_client import PlainClient


@contextmanager
def servers_of(request: pytest.FixtureRequest, *names: str) -> Iterator[dict[str, str]]:
    """What tells a shop of a new database without any table, and of RabbitMQ; of neither where it is not named."""
    environment: dict[str, str] = {}
    if "postgresql" in names:
        server, name = request.getfixturevalue("postgresql"), f"outboxkit_shop_{secrets.token_hex(6)}"
        environment["OUTBOXKIT_DATABASE_URL"] = create_database(server.url, name)
    if "rabbitmq" in names:
        client = PlainClient(request.getfixturevalue("rabbitmq").url)
        names_of = {"BROKER_URL": client.url, "EXCHANGE": client.exchange, "QUEUE": client.queue}
        environment.update({f"OUTBOXKIT_{setting}": value for setting, value in names_of.items()})
    yield environment
    if "rabbitmq" in names:
        client.clean_up()
    if "postgresql" in names:
        drop_database(server.url, name)
