"""A database that goes away, refuses or interrupts: the relay says so once, waits, and goes on by itself."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest
from sqlalchemy import select, text

from outboxkit import tables
from outboxkit.wakeup import NAME as BELL
from tests.acceptance.deployment import Deployment
from tests.acceptance.settling import settling_waits
from tests.acceptance.witness import Witness, begin, declare, status_says
from tests.pages import libpq
from tests.polling import eventually
from tests.servers import Server

RELAY = "outboxkit relay"
SIGNAL = """SELECT {}(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ANY(:names)"""
ENDED, CANCELLED = (text(SIGNAL.format(what)) for what in ("pg_terminate_backend", "pg_cancel_backend"))


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_it_is_down(on_own_postgresql: Deployment, own_postgresql: Server, way: str):
    witness = begin(on_own_postgresql)
    getattr(own_postgresql, way)()
    witness.assert_away("database", "terminating connection", "Connection refused", "server closed the connection")
    assert "Connection refused" in status_says(on_own_postgresql)
    own_postgresql.start()
    witness.send()
    witness.assert_all_arrived("database")


def test_it_is_read_only_as_after_a_failover(on_own_postgresql: Deployment):
    witness = begin(on_own_postgresql)
    with read_only(on_own_postgresql):
        witness.send(first="SET TRANSACTION READ WRITE")
        witness.assert_away("database", "in a read-only transaction")
        witness.assert_status(waiting=4)
    witness.assert_all_arrived("database")


def test_it_has_no_connection_left(on_own_postgresql: Deployment):
    deployment = on_own_postgresql
    witness = begin(deployment)
    with ExitStack() as stack, deployment.engine.connect() as own:
        own.execute(text("SELECT 1"))
        take_all_connections(deployment, stack)
        own.execute(ENDED, {"names": [RELAY, BELL]})
        take_all_connections(deployment, stack)
        witness.assert_away("database", "terminating connection", "too many clients")
        assert "too many clients" in status_says(deployment)
    witness.send()
    witness.assert_all_arrived("database")


@pytest.mark.parametrize(
    ("way", "because"),
    [
        ("a person cancels", "canceling statement due to user request"),
        ("lock_timeout", "canceling statement due to lock timeout"),
    ],
)
def test_it_cancels_a_claim_that_waits(deployment: Deployment, way: str, because: str):
    declare(deployment)
    limited = {"PGOPTIONS": "-c lock_timeout=100ms"} if way == "lock_timeout" else {}
    with deployment.engine.connect() as other:
        witness = Witness(deployment)
        witness.send()
        other.execute(text("LOCK TABLE outboxkit_outbox IN EXCLUSIVE MODE"))
        witness.start_relay(**limited)
        if way == "a person cancels":
            eventually(lambda: deployment.waiting_on("relation"))
            with deployment.engine.begin() as person:
                person.execute(CANCELLED, {"names": [RELAY]})
        witness.assert_away("database", because)
        witness.assert_status(waiting=4)
    witness.assert_all_arrived("database")


def test_it_ends_every_connection_of_an_idle_relay(deployment: Deployment):
    witness = begin(deployment)
    eventually(lambda: pids(deployment, BELL))
    with deployment.engine.begin() as person:
        person.execute(ENDED, {"names": [RELAY, BELL]})
    witness.send()
    witness.assert_away("database", "terminating connection due to administrator command")
    witness.assert_all_arrived("database")


def test_it_ends_the_connections_between_publish_and_settle(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through)
        proxy.hold_server()
        witness.send()
        eventually(lambda: deployment.broker.depth() == 4)
        with deployment.engine.begin() as person:
            person.execute(ENDED, {"names": [RELAY]})
        witness.assert_status(waiting=4)
        proxy.release()
        witness.assert_away("database", "terminating connection due to administrator command")
        witness.assert_all_arrived("database")
    assert len(witness.arrived) == 4 + 4 + 4, "what was published and not settled came again, under the same ids"


def test_it_ends_the_connection_for_waking_up_alone(deployment: Deployment):
    witness = begin(deployment)
    for _ in range(2):
        (bell,) = eventually(lambda: pids(deployment, BELL))
        with deployment.engine.begin() as person:
            person.execute(ENDED, {"names": [BELL]})
        eventually(lambda: pids(deployment, BELL), lambda found: found not in ([], [bell]))  # noqa: B023
        witness.send()
    witness.deployment.wait_for_empty_outbox()
    witness.assert_status(waiting=0)
    witness.assert_all_arrived(None)


def test_it_breaks_a_deadlock(deployment: Deployment):
    witness = begin(deployment, PGOPTIONS="-c deadlock_timeout=1s")
    with settling_waits(deployment) as other:
        other.execute(text("SET deadlock_timeout = '1min'"))  # who looks first is the one that is ended
        witness.send()
        eventually(lambda: deployment.waiting_on("advisory"))
        assert len(other.execute(select(tables.outbox).with_for_update()).all()) == 4
        witness.assert_away("database", "deadlock detected")
        witness.assert_status(waiting=4)
        other.rollback()
    witness.assert_all_arrived("database")


def pids(deployment: Deployment, name: str) -> list[int]:
    """The connections of this name to the database."""
    asked = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name")
    with deployment.engine.connect() as connection:
        return list(connection.execute(asked, {"name": name}).scalars())


def take_all_connections(deployment: Deployment, stack: ExitStack) -> None:
    """Connect until the server has no place left."""
    url = libpq(deployment.engine.url.render_as_string(hide_password=False))
    with suppress(psycopg.OperationalError):
        while True:
            stack.enter_context(psycopg.connect(url))


@contextmanager
def read_only(deployment: Deployment) -> Iterator[None]:
    """The whole server answers as a standby would."""
    with deployment.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as person:
        person.execute(text("ALTER SYSTEM SET default_transaction_read_only = on"))
        person.execute(text("SELECT pg_reload_conf()"))
        try:
            yield
        finally:
            person.execute(text("ALTER SYSTEM RESET default_transaction_read_only"))
            person.execute(text("SELECT pg_reload_conf()"))
