"""Servers that go away in the middle: everything waits, nothing is to blame, and work goes on by itself."""

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.order_taker import OrderTaker
from tests.acceptance.witness import states, status_says
from tests.acceptance.worker_process import WorkerProcess
from tests.polling import eventually
from tests.servers import Server

WAYS = ("stop", "kill")


@pytest.mark.parametrize("way", WAYS)
def test_rabbitmq_goes_away_and_comes_back(on_own_rabbitmq: Deployment, own_rabbitmq: Server, way: str):
    deployment = on_own_rabbitmq
    consumer, relay = deployment.consumer(), deployment.relay()
    with OrderTaker(deployment.engine):
        before = deployment.wait_for_effects(20).total()
        getattr(own_rabbitmq, way)()
        for process in (relay, consumer):
            process.wait_for("broker is away, waiting")
        own_rabbitmq.start()
        for process in (relay, consumer):
            process.wait_for("broker is back, work goes on")
        deployment.wait_for_effects(before + 20)
    assert_everything_arrived(deployment, relay, consumer)
    assert states(relay, "broker") == states(consumer, "broker") == ["away", "back"]


@pytest.mark.parametrize("way", WAYS)
def test_postgresql_goes_away_and_comes_back(on_own_postgresql: Deployment, own_postgresql: Server, way: str):
    deployment = on_own_postgresql
    consumer, relay = deployment.consumer(), deployment.relay()
    with OrderTaker(deployment.engine):
        before = deployment.wait_for_effects(20).total()
        getattr(own_postgresql, way)()
        relay.wait_for("database is away, waiting")
        assert status_says(deployment).startswith("outboxkit: the database ")
        own_postgresql.start()
        relay.wait_for("database is back, work goes on")
        deployment.wait_for_effects(before + 20)
    assert_everything_arrived(deployment, relay, consumer)
    assert states(relay, "database") == ["away", "back"]
    assert states(consumer, "database") in ([], ["away", "back"])  # it notices only with a delivery in its hands


def assert_everything_arrived(deployment: Deployment, relay: WorkerProcess, consumer: WorkerProcess) -> None:
    orders = deployment.orders()
    assert eventually(deployment.effects, lambda found: len(found) >= len(orders)) == dict.fromkeys(orders, 1)
    deployment.wait_for_empty_outbox()
    assert [relay.stop(), consumer.stop()] == [0, 0]
    assert deployment.effects() == dict.fromkeys(orders, 1)
    assert not relay.entries("message not published")
    assert not consumer.entries("handler failed, will be retried")
    assert not deployment.dead_letters()
