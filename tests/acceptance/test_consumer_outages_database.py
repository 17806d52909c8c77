"""A database that goes away in the middle of a handler and of a batch: the consumer says so, waits, and goes on."""

from contextlib import ExitStack

import pytest

from tests.acceptance.customers import Customers, gate_shut
from tests.acceptance.deployment import Deployment
from tests.acceptance.test_relay_outages_database import ENDED, pids, take_all_connections
from tests.acceptance.witness import read_only, states
from tests.servers import Server
from tests.support.polling import eventually

LOST = ("terminating connection", "server closed the connection", "Connection refused", "shutting down")


def consumers_name(deployment: Deployment) -> str:
    """What its connections to the database are called."""
    return f"outboxkit consumer {deployment.broker.queue}"


@pytest.mark.parametrize("way", [pytest.param("stop", marks=pytest.mark.night), "kill"])
def test_it_goes_down_in_the_middle(on_own_postgresql: Deployment, own_postgresql: Server, way: str):
    customers = Customers(on_own_postgresql)
    with gate_shut(on_own_postgresql):
        customers.send()
        customers.wait_in_the_middle()
        getattr(own_postgresql, way)()
    customers.send()  # if the gate went first, those that waited have ended well
    customers.consumer.assert_away("database", *LOST)
    own_postgresql.start()
    customers.assert_all_handled("database")


def test_who_stops_while_it_is_down_gives_everything_back(on_own_postgresql: Deployment, own_postgresql: Server):
    deployment = on_own_postgresql
    customers = Customers(deployment)
    with gate_shut(deployment):
        customers.send()
        customers.wait_in_the_middle()
        own_postgresql.stop()
    customers.send()  # if the gate went first, those that waited have ended well
    customers.consumer.assert_away("database", *LOST)
    assert customers.consumer.stop() == 0
    assert states(customers.consumer, "database") == ["away"]
    given_back = eventually(customers.depths, lambda depths: depths["queue"] >= 2)
    assert list(given_back) == ["queue"]
    customers.start_consumer().wait_for("database is away, waiting")
    own_postgresql.start()
    customers.assert_all_handled("database")


def test_it_is_read_only_as_after_a_failover(on_own_postgresql: Deployment):
    deployment = on_own_postgresql
    customers = Customers(deployment)
    with read_only(deployment):
        customers.send()
        customers.consumer.assert_away("database", "in a read-only transaction")
        assert len(deployment.message_ids()) == 10
    customers.assert_all_handled("database")


def test_it_has_no_connection_left(on_own_postgresql: Deployment):
    deployment = on_own_postgresql
    with deployment.database_behind_proxy() as (proxy, through), ExitStack() as stack:
        customers = Customers(deployment, OUTBOXKIT_DATABASE_URL=through)
        stack.enter_context(gate_shut(deployment))
        with deployment.engine.connect() as own:
            customers.send()
            customers.wait_in_the_middle()
            proxy.swallow()  # it is not to connect again before all places are taken
            own.execute(ENDED, {"names": [consumers_name(deployment)]})
            eventually(lambda: not pids(deployment, consumers_name(deployment)))
            take_all_connections(deployment, stack)
        proxy.release()
        customers.consumer.assert_away("database", "terminating connection")
        before = proxy.turns
        eventually(lambda: proxy.turns > before + 4)  # it tries, and tries again
        assert len(deployment.message_ids()) < 20
        stack.close()
        customers.wait_for_effects()
        noticed = states(customers.consumer, "database").count("away")
        assert noticed <= 2, "places get free one by one"
        customers.assert_all_handled("database", times=noticed)
