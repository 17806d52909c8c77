"""A server that takes prepared transactions: two-phase commit works with the outbox, and none is forgotten."""

import secrets
from collections.abc import Iterator

import psycopg
import pytest

from outboxkit.operators.doctor import sessions
from tests.integration.operators.doctoring import codes, one
from tests.servers import Server, create_database, drop_database
from tests.support.databases import migrate
from tests.support.pages import libpq

ADD = """
INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type)
VALUES ('m', 'T', '{}', '{}', 'application/json')
"""
REGISTER = "INSERT INTO outboxkit_listener VALUES ('somebody', now() + interval '1 hour')"


@pytest.fixture(scope="module")
def preparing_url(own_postgresql: Server) -> Iterator[str]:
    """A database with outboxkit's tables in a server that takes prepared transactions for as long as the tests run."""
    restart_with(own_postgresql, "ALTER SYSTEM SET max_prepared_transactions = 5")
    name = f"outboxkit_{secrets.token_hex(6)}"
    url = create_database(own_postgresql.url, name)
    migrate(url)
    yield url
    drop_database(own_postgresql.url, name)
    restart_with(own_postgresql, "ALTER SYSTEM RESET max_prepared_transactions")


def restart_with(server: Server, change: str) -> None:
    with psycopg.connect(libpq(server.url), autocommit=True) as connection:
        connection.execute(change)
    server.stop()
    server.start()


def test_a_transaction_with_a_message_can_be_prepared_while_a_relay_listens(preparing_url: str) -> None:
    """A transaction that has notified cannot: the trigger keeps silent, and the relay polls."""
    with psycopg.connect(libpq(preparing_url), autocommit=True) as connection:
        connection.execute(REGISTER)
        connection.execute(f"BEGIN; {ADD}; PREPARE TRANSACTION 'order'")
        connection.execute("COMMIT PREPARED 'order'")
        assert connection.execute("SELECT count(*) FROM outboxkit_outbox").fetchone() == (1,)


def test_doctor_names_a_prepared_transaction_and_its_cure_ends_it(preparing_url: str) -> None:
    name = f"left-{secrets.token_hex(4)}"
    with psycopg.connect(libpq(preparing_url), autocommit=True) as connection:
        connection.execute(f"BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '{name}'")
        finding = one(preparing_url, sessions.check_transactions, "vacuum-held-back")
        connection.execute(finding.commands[1])
    assert f"The prepared transaction {name} of role" in finding.what
    assert "vacuum-held-back" not in codes(preparing_url, sessions.check_transactions)
