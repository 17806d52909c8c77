"""A broker that goes away while handlers run: what they did stays, what was prefetched comes again, work goes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pamqp import commands, frame

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
    customers.assert_away("broker", "the connection to the broker was lost")
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
        customers.assert_away("broker", "no sign of life")
        proxy.cut()  # the broker, which still counts on the old one, notices too
        proxy.release()
        customers.assert_all_handled("broker")


def test_its_queue_is_deleted_in_the_middle(deployment: Deployment):
    customers = Customers(deployment)
    with gate_shut(deployment):
        customers.send()
        customers.wait_in_the_middle()
        deployment.broker.delete_queue()
    customers.wait_for_effects()
    customers.assert_away("broker", "the broker cancelled the consumer")
    eventually(lambda: deployment.broker.has_queue() and deployment.broker.consumers())
    customers.assert_all_handled("broker")


def test_it_cancels_one_of_the_consumers(deployment: Deployment):
    customers = Customers(deployment)
    beside = f"{deployment.broker.queue}.dead"
    with gate_shut(deployment):
        customers.send()
        customers.wait_in_the_middle()
        deployment.broker.delete_queue(beside)
    customers.assert_away("broker", "the broker cancelled the consumer")
    eventually(lambda: deployment.broker.has_queue(beside) and deployment.broker.consumers(beside))
    customers.assert_all_handled("broker")


def test_it_closes_the_channel_for_an_error_of_protocol(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        customers = Customers(deployment, OUTBOXKIT_BROKER_URL=through)
        with gate_shut(deployment):
            customers.send()
            customers.wait_in_the_middle()
            proxy.interject(frame.marshal(commands.Basic.Ack(delivery_tag=4711), 1))
            customers.assert_away("broker", "PRECONDITION_FAILED - unknown delivery tag 4711")
        customers.assert_all_handled("broker")


@contextmanager
def set_in_broker(server: OwnServer, **settings: int) -> Iterator[None]:
    """Settings of the Erlang application `rabbit`, for channels that are opened now."""

    def evaluate(text: str) -> None:
        server.execute("rabbitmqctl", "eval", text)

    evaluate(", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in settings.items()) + ".")
    try:
        yield
    finally:
        defaults = {"consumer_timeout": 1_800_000, "channel_tick_interval": 60_000}
        evaluate(", ".join(f"application:set_env(rabbit, {name}, {defaults[name]})" for name in settings) + ".")


def test_it_has_waited_too_long_for_an_ack(on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer):
    with set_in_broker(own_rabbitmq, consumer_timeout=3000, channel_tick_interval=500):
        customers = Customers(on_own_rabbitmq)
        with gate_shut(on_own_rabbitmq):
            customers.send()
            customers.wait_in_the_middle()
            customers.assert_away("broker", "delivery acknowledgement on channel 1 timed out")
    customers.assert_all_handled("broker")


def test_it_takes_no_publishes_and_consuming_goes_on(on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer):
    deployment = on_own_rabbitmq
    few = {"OUTBOXKIT_CONCURRENCY": "2", "OUTBOXKIT_BATCH_SIZE": "2"}
    customers = Customers(deployment, **few)
    with gate_shut(deployment):
        customers.send(100)  # more than are pushed ahead
        customers.refund()
        customers.wait_in_the_middle()
        own_rabbitmq.execute("rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
    try:
        customers.wait_for_effects()
        customers.assert_away("broker", "the broker has blocked publishers: low on memory")
        eventually(customers.depths, lambda found: not found)
        assert "refund 0 approved" not in deployment.message_ids()
    finally:
        own_rabbitmq.execute("rabbitmqctl", "set_vm_memory_high_watermark", "0.6")
    eventually(lambda: "refund 0 approved" in deployment.message_ids())
    customers.assert_all_handled("broker")
