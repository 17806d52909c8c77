"""A database that goes away, refuses or interrupts: the relay says so once, waits, and goes on by itself."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import psycopg
import pytest
from sqlalchemy import select, text

from outboxkit import tables
from outboxkit.database.session_names import RELAY_LISTENER as LISTENER
from tests.acceptance.deployment import Deployment
from tests.acceptance.settling import SETTLE, let_settling_wait
from tests.acceptance.witness import Witness, begin, declare, read_only, status_says
from tests.servers import Server
from tests.support.pages import libpq
from tests.support.polling import eventually

RELAY = "outboxkit relay"
GOING = ("terminating connection", "server closed the connection", "is shutting down", "Connection refused")
"""What a client hears of a server that goes, depending on what it does just then."""
NAMED = """SELECT {} FROM pg_stat_activity
WHERE datname = current_database() AND split_part(application_name, ' (batch)', 1) = ANY(:names)"""
ENDED, CANCELLED = (text(NAMED.format(f"{what}(pid)")) for what in ("pg_terminate_backend", "pg_cancel_backend"))


@pytest.mark.parametrize("way", [pytest.param("stop", marks=pytest.mark.night), "kill"])
def test_it_is_down(on_own_postgresql: Deployment, own_postgresql: Server, way: str):
    witness = begin(on_own_postgresql)
    getattr(own_postgresql, way)()
    witness.relay.assert_away("database", *GOING)
    assert "Connection refused" in status_says(on_own_postgresql)
    own_postgresql.start()
    witness.send()
    witness.assert_all_arrived("database")


def test_it_is_read_only_as_after_a_failover(on_own_postgresql: Deployment):
    witness = begin(on_own_postgresql)
    with read_only(on_own_postgresql):
        witness.send(first="SET TRANSACTION READ WRITE")
        witness.relay.assert_away("database", "in a read-only transaction")
        witness.assert_status(waiting=4)
    witness.assert_all_arrived("database")


def test_it_has_no_connection_left(on_own_postgresql: Deployment):
    deployment = on_own_postgresql
    witness = begin(deployment)
    with ExitStack() as stack, deployment.engine.connect() as own:
        own.execute(text("SELECT 1"))
        take_all_connections(deployment, stack)
        with witness.relay.frozen():  # else it may have a connection again before all are taken
            own.execute(ENDED, {"names": [RELAY, LISTENER]})
            take_all_connections(deployment, stack)
        witness.relay.assert_away(
            "database", "terminating connection", "server closed the connection", "too many clients"
        )
        assert "too many clients" in status_says(deployment)
    witness.send()
    witness.assert_all_arrived("database")


@pytest.mark.parametrize(
    ("way", "because"),
    [
        ("a person cancels", "canceling statement due to user request"),
        ("nobody does anything", "canceling statement due to lock timeout"),
    ],
)
def test_it_cancels_a_claim_that_waits(deployment: Deployment, way: str, because: str):
    declare(deployment)
    with deployment.engine.connect() as other:
        witness = Witness(deployment)
        witness.send()
        other.execute(text("LOCK TABLE outboxkit_outbox IN EXCLUSIVE MODE"))
        witness.start_relay()
        if way == "a person cancels":
            eventually(lambda: deployment.waiting_on("relation"))
            with deployment.engine.begin() as person:
                person.execute(CANCELLED, {"names": [RELAY]})
        witness.relay.assert_away("database", because)
        witness.assert_status(waiting=4)
    witness.assert_all_arrived("database")


def test_a_table_is_altered_under_a_busy_relay(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through), ThreadPoolExecutor() as threads:
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through, OUTBOXKIT_BATCH_SIZE="1")
        proxy.hold_server()
        witness.send()
        eventually(lambda: deployment.broker.depth() == 1)

        def alter() -> None:
            with deployment.engine.begin() as person:
                person.execute(text("ALTER TABLE outboxkit_outbox ALTER COLUMN headers SET STATISTICS 100"))
                person.execute(text("LOCK TABLE outboxkit_outbox IN ACCESS EXCLUSIVE MODE"))

        altering = threads.submit(alter)
        eventually(lambda: deployment.waiting_on("relation", of=""))
        proxy.release()
        altering.result()
        witness.collect()
        witness.relay.assert_away("database", "canceling statement due to lock timeout")
        witness.assert_all_arrived("database")
    assert sorted(witness.arrived) == sorted(witness.sent), "nothing was published twice: all was settled in time"


def test_it_breaks_a_deadlock(deployment: Deployment):
    let_settling_wait(deployment)
    with deployment.broker_behind_proxy() as (proxy, through), ThreadPoolExecutor() as threads:
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through, PGOPTIONS="-c deadlock_timeout=100ms")
        with deployment.lock_held(SETTLE) as other:
            other.execute(text("SET deadlock_timeout = '1min'"))  # who looks first is the one that is ended
            proxy.hold_server()
            witness.send()
            eventually(lambda: deployment.broker.depth() == 4)
            taken = threads.submit(lambda: other.execute(select(tables.outbox).with_for_update()).all())
            eventually(lambda: deployment.waiting_on("transactionid", of=""))
            proxy.release()
            witness.relay.assert_away("database", "deadlock detected")
            assert len(taken.result()) == 4
            witness.assert_status(waiting=4)
            other.rollback()
        witness.assert_all_arrived("database")


def pids(deployment: Deployment, name: str) -> list[int]:
    """The connections of this name to the database."""
    with deployment.engine.connect() as connection:
        return list(connection.execute(text(NAMED.format("pid")), {"names": [name]}).scalars())


def take_all_connections(deployment: Deployment, stack: ExitStack) -> None:
    """Connect until the server has no place left."""
    url = libpq(deployment.engine.url.render_as_string(hide_password=False))
    with suppress(psycopg.OperationalError):
        while True:
            stack.enter_context(psycopg.connect(url))
