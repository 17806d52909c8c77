"""Users of a RabbitMQ of the tests' own, with few rights."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import make_url

from tests.servers import OwnServer

NOTHING = "^$"


@contextmanager
def broker_user(
    server: OwnServer, *, configure: str = NOTHING, write: str = NOTHING, read: str = NOTHING
) -> Iterator[str]:
    """The URL of a user with these rights in the server's virtual host; afterwards the user is gone."""
    user = f"user-{secrets.token_hex(4)}"
    server.execute("rabbitmqctl", "add_user", user, "secret")
    server.execute("rabbitmqctl", "set_permissions", user, configure, write, read)
    try:
        yield make_url(server.url).set(username=user, password="secret").render_as_string(hide_password=False)
    finally:
        server.execute("rabbitmqctl", "delete_user", user)
