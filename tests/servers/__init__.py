"""Real PostgreSQL and RabbitMQ servers for the tests, found, started or installed.

`provision` says where they come from; `Server` is what a test may do with one.
"""

from tests.servers.postgresql import create_database, drop_database
from tests.servers.provision import (
    POSTGRESQL,
    RABBITMQ,
    provide_chromium,
    provide_faketime,
    provide_own,
    provide_own_rabbitmq,
    provide_pooler,
    provide_postgresql,
    provide_rabbitmq,
)
from tests.servers.server import OwnServer, Server, ServersUnavailable

__all__ = [
    "POSTGRESQL",
    "RABBITMQ",
    "OwnServer",
    "Server",
    "ServersUnavailable",
    "create_database",
    "drop_database",
    "provide_chromium",
    "provide_faketime",
    "provide_own",
    "provide_own_rabbitmq",
    "provide_pooler",
    "provide_postgresql",
    "provide_rabbitmq",
]
