"""A PostgreSQL that is silent while its network acknowledges: workers notice it, and blame nobody."""

import pytest

from tests.acceptance.customers import Customers, gate_shut
from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import OrderConfirmed, send
from tests.acceptance.test_consumer_outages_database import database_behind_proxy, noticed
from tests.acceptance.witness import states


def test_a_relay_goes_on_over_another_connection(deployment: Deployment):
    deployment.declare_queue()
    with database_behind_proxy(deployment) as (proxy, through):
        relay = deployment.relay(**through)
        send(deployment.engine, OrderConfirmed(1, 1))
        deployment.wait_for_empty_outbox()
        proxy.silence()
        send(deployment.engine, OrderConfirmed(2, 1))
        deployment.wait_for_empty_outbox()
        assert relay.stop() == 0
        assert states(relay, "database") == ["away", "back"]
        assert "the connection was silent for" in relay.entries("database is away, waiting")[0]["error"]


@pytest.mark.night
def test_a_consumer_in_the_middle_of_handlers_goes_on_over_other_connections(deployment: Deployment):
    with database_behind_proxy(deployment) as (proxy, through):
        customers = Customers(deployment, **through)
        with gate_shut(deployment):
            customers.send()
            customers.wait_in_the_middle()
            proxy.silence()
        customers.send()
        customers.assert_away("database", "the connection was silent for")
        customers.wait_for_effects()
        customers.assert_all_handled("database", times=noticed(customers, at_most=4))
