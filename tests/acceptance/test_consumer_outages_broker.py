"""A broker that goes away while handlers run: what they did stays, what was prefetched comes again, work goes on."""

import pytest

from tests.acceptance.customers import Customers, gate_shut
from tests.acceptance.deployment import Deployment
from tests.servers import OwnServer
from tests.support.polling import eventually


@pytest.mark.parametrize("way", [pytest.param("stop", marks=pytest.mark.night), "kill"])
def test_it_goes_down_in_the_middle(on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer, way: str):
    customers = Customers(on_own_rabbitmq)
    # RabbitMQ 3.10 finds no leader for the quorum queue that was declared last, if it is killed within seconds of that.
    broker = on_own_rabbitmq.broker
    broker.bind("Nobody", queue=f"{broker.queue}.last", arguments={"x-queue-type": "quorum"})
    with gate_shut(on_own_rabbitmq):
        customers.send()
        customers.wait_in_the_middle()
        getattr(own_rabbitmq, way)()
    customers.wait_for_gated_effects()
    customers.consumer.assert_away("broker", "the connection to the broker was lost")
    own_rabbitmq.start()
    customers.assert_all_handled("broker")
    assert customers.consumer.outcomes().count("duplicate") >= 2, "what was in hand came again, and was known"


def test_it_falls_silent_and_heartbeats_tell(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        customers = Customers(deployment, OUTBOXKIT_BROKER_URL=f"{through}?heartbeat=1")
        with gate_shut(deployment):
            customers.send()
            customers.wait_in_the_middle()
            proxy.swallow()
        customers.wait_for_gated_effects()
        customers.consumer.assert_away("broker", "no sign of life")
        proxy.cut()  # the broker, which still counts on the old one, notices too
        proxy.release()
        customers.assert_all_handled("broker")


@pytest.mark.parametrize("of", ["", ".dead"], ids=["its queue", "the queue of dropped messages"])
def test_a_queue_is_deleted_in_the_middle(deployment: Deployment, of: str):
    customers, queue = Customers(deployment), f"{deployment.broker.queue}{of}"
    with gate_shut(deployment):
        customers.send()
        customers.wait_in_the_middle()
        eventually(lambda: deployment.broker.depth() == 0)  # what is not in the consumer's hand would be gone
        deployment.broker.delete_queue(queue)
    customers.wait_for_effects()
    customers.consumer.assert_away("broker", "the broker cancelled the consumer")
    eventually(lambda: deployment.broker.has_queue(queue) and deployment.broker.consumers(queue))
    customers.assert_all_handled("broker")
