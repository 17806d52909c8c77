"""Servers that go away in the middle: everything waits, nothing is to blame, and work goes on by itself."""

import json

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.order_taker import OrderTaker
from tests.acceptance.shop import take_orders
from tests.acceptance.witness import read_only, states, status_says
from tests.acceptance.worker_process import WorkerProcess
from tests.servers import Server
from tests.support.polling import eventually


@pytest.mark.parametrize("way", ["stop", pytest.param("kill", marks=pytest.mark.night)])
def test_rabbitmq_goes_away_and_comes_back(on_own_rabbitmq: Deployment, own_rabbitmq: Server, way: str):
    deployment = on_own_rabbitmq
    consumer, relay = deployment.consumer(), deployment.relay()
    with OrderTaker(deployment.engine):
        before = deployment.wait_for_effects(20).total()
        # RabbitMQ 3.10 finds no leader for the quorum queue that was declared last, if it is killed soon after that.
        broker = deployment.broker
        broker.bind("Nobody", queue=f"{broker.queue}.last", arguments={"x-queue-type": "quorum"})
        getattr(own_rabbitmq, way)()
        for process in (relay, consumer):
            process.wait_for("broker is away, waiting")
        status = json.loads(deployment.outboxkit("status", "--json").stdout)["figures"]
        assert status["outbox"]["pending"]["value"] > 0
        assert {name.split()[1] for name in status["sessions"]} >= {"relay", "consumer"}
        own_rabbitmq.start()
        for process in (relay, consumer):
            process.wait_for("broker is back, work goes on")
        deployment.wait_for_effects(before + 20)
    assert_everything_arrived(deployment, relay, consumer)
    assert states(relay, "broker") == states(consumer, "broker") == ["away", "back"]


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_postgresql_goes_away_and_comes_back(on_own_postgresql: Deployment, own_postgresql: Server, way: str):
    deployment = on_own_postgresql
    consumer, relay = deployment.consumer(), deployment.relay()
    with OrderTaker(deployment.engine):
        before = deployment.wait_for_effects(20).total()
        getattr(own_postgresql, way)()
        relay.wait_for("database is away, waiting")
        assert status_says(deployment)
        own_postgresql.start()
        relay.wait_for("database is back, work goes on")
        deployment.wait_for_effects(before + 20)
    # What it had away may have been a look at pauses alone, which comes again after some seconds.
    eventually(lambda: states(consumer, "database")[-1:] != ["away"])
    assert_everything_arrived(deployment, relay, consumer)
    # A server that shuts down ends what is open and refuses what is new: two outages, where a statement comes between.
    assert states(relay, "database") in (["away", "back"], ["away", "back"] * 2)
    assert states(consumer, "database") in (
        [],
        ["away", "back"],
        ["away", "back"] * 2,
    )  # it notices only with a delivery in its hands


def test_a_consumer_notices_that_rabbitmq_fell_silent(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        consumer, relay = deployment.consumer(OUTBOXKIT_BROKER_URL=f"{through}?heartbeat=1"), deployment.relay()
        take_orders(deployment.engine, range(1, 4))
        deployment.wait_for_effects(3)
        proxy.swallow()
        take_orders(deployment.engine, range(4, 7))
        assert "no sign of life" in consumer.wait_for("broker is away, waiting")["error"]
        proxy.release()
        consumer.wait_for("broker is back, work goes on")
        assert_everything_arrived(deployment, relay, consumer)
    assert states(consumer, "broker") == ["away", "back"]


def test_a_consumer_blames_no_delivery_for_a_database_that_is_read_only(on_own_postgresql: Deployment):
    deployment = on_own_postgresql
    consumer = deployment.consumer()
    with read_only(deployment):
        order = b'{"order_id":1,"total":"1"}'
        deployment.broker.publish(order, topic="OrderConfirmed", type="OrderConfirmed", message_id="1")
        assert "read-only transaction" in consumer.wait_for("database is away, waiting")["error"]
    assert deployment.wait_for_effects(1) == {1: 1}
    assert consumer.stop() == 0
    assert states(consumer, "database") == ["away", "back"]
    assert consumer.outcomes() == ["processed"]
    assert not consumer.entries("handler failed, will be retried")


def assert_everything_arrived(deployment: Deployment, relay: WorkerProcess, consumer: WorkerProcess) -> None:
    orders = deployment.orders()
    assert eventually(deployment.effects, lambda found: len(found) >= len(orders)) == dict.fromkeys(orders, 1)
    deployment.wait_for_empty_outbox()
    assert [relay.stop(), consumer.stop()] == [0, 0]
    assert deployment.effects() == dict.fromkeys(orders, 1)
    assert not relay.entries("message not published")
    assert not consumer.entries("handler failed, will be retried")
    assert not deployment.dead_letters()
