"""A broker with management, started once for all tests of its examination."""

from collections.abc import Iterator

import pytest

from tests.integration.operators.doctor_broker.examining import LARGEST, Admin, can_be_asked
from tests.servers.cluster import provide_managed
from tests.servers.rabbitmq import PrivateRabbitmq
from tests.support.delays import DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRabbitmq]:
    server = provide_managed(max_message_size=str(LARGEST))
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def admin(server: PrivateRabbitmq) -> Admin:
    admin = Admin(server.management_url)
    eventually(lambda: can_be_asked(admin))
    return admin


@pytest.fixture
def client(server: PrivateRabbitmq, admin: Admin) -> Iterator[PlainClient]:
    client = PlainClient(server.url)
    yield client
    client.clean_up(DELAYS_TEXT.split(","))
