"""SIGKILL at the two instants that matter most: after the publish and before the settle, after the commit and before
the ack."""

from decimal import Decimal

from outboxkit.codec import payloads
from tests.acceptance.deployment import Deployment
from tests.acceptance.settling import kill_settling, settling_waits
from tests.acceptance.shop import OrderConfirmed, send
from tests.acceptance.stock import Parcel, Stock
from tests.support.polling import eventually


def test_a_relay_killed_between_publish_and_settle_publishes_again_with_the_same_id(deployment: Deployment):
    deployment.declare_queue()
    sent = send(deployment.engine, *(OrderConfirmed(number, Decimal(1)) for number in range(20)))
    with settling_waits(deployment):
        relay = deployment.relay()
        eventually(lambda: deployment.broker.depth() == 20 and deployment.waiting_on("advisory") == 1)
        kill_settling(deployment, relay)
        assert deployment.pending() == 20
    drained = deployment.outboxkit("relay", "--drain")
    assert (drained.returncode, drained.stdout) == (0, "published 20\n")
    assert deployment.broker.depth() == 40
    consumed = deployment.outboxkit("consume", "tests.acceptance.shop", "--drain")
    assert (consumed.returncode, consumed.stdout) == (0, "duplicate 20, processed 20\n")
    assert sorted(deployment.message_ids()) == sorted(message.id for message in sent)
    assert deployment.effects() == dict.fromkeys(range(20), 1)


def test_a_relay_killed_while_it_settles_has_lost_nothing_and_sends_nothing_twice(deployment: Deployment):
    """Its last DELETE has arrived together with the COMMIT."""
    deployment.declare_queue()
    send(deployment.engine, *(OrderConfirmed(number, Decimal(1)) for number in range(20)))
    with settling_waits(deployment):
        relay = deployment.relay()
        eventually(lambda: deployment.broker.depth() == 20 and deployment.waiting_on("advisory") == 1)
        relay.kill()
    assert eventually(deployment.pending, lambda pending: pending == 0) == 0
    drained = deployment.outboxkit("relay", "--drain")
    assert (drained.stdout, deployment.broker.depth()) == ("published 0\n", 20)


def test_a_message_that_is_published_twice_is_the_same_on_the_wire(deployment: Deployment):
    deployment.broker.bind("OrderConfirmed")
    (sent,) = send(deployment.engine, OrderConfirmed(1, Decimal("1.50")), key="order-1", headers={"tenant": "a"})
    with settling_waits(deployment):
        relay = deployment.relay()
        eventually(lambda: deployment.broker.depth() == 1 and deployment.waiting_on("advisory") == 1)
        kill_settling(deployment, relay)
    assert deployment.outboxkit("relay", "--drain").returncode == 0
    first, second = deployment.broker.take_all()
    assert first.body == second.body == b'{"order_id":1,"total":"1.50"}'
    assert vars(first.properties) == vars(second.properties)
    assert first.properties.message_id == sent.id


def test_a_consumer_killed_after_its_commit_and_before_its_ack_gets_a_duplicate(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        consumer = deployment.consumer(OUTBOXKIT_BROKER_URL=through)
        eventually(lambda: deployment.broker.consumers() == 1)
        proxy.hold_client()
        deployment.broker.publish(
            payloads.encode(OrderConfirmed(7, Decimal(1))),
            topic="OrderConfirmed",
            type="OrderConfirmed",
            message_id="m",
        )
        assert deployment.wait_for_effects(1) == {7: 1}
        eventually(lambda: proxy.held_bytes > 0)
        consumer.kill()
        proxy.cut()
    eventually(lambda: deployment.broker.depth() == 1)
    consumed = deployment.outboxkit("consume", "tests.acceptance.shop", "--drain")
    assert (consumed.returncode, consumed.stdout) == (0, "duplicate 1\n")
    assert deployment.effects() == {7: 1}


def test_one_killed_after_a_threads_commit_and_before_its_ack_gets_a_duplicate(deployment: Deployment):
    stock = Stock(deployment)
    stock.declare()
    with deployment.broker_behind_proxy() as (proxy, through):
        consumer = stock.consume(OUTBOXKIT_BROKER_URL=through)
        eventually(lambda: deployment.broker.consumers() == 1)
        proxy.hold_client()
        stock.arrive([Parcel(1)])
        eventually(lambda: stock.booked() == {1: 1})
        eventually(lambda: proxy.held_bytes > 0)
        consumer.kill()
        proxy.cut()
    eventually(lambda: deployment.broker.depth() == 1)
    assert stock.drain() == "duplicate 1\n"
    assert (stock.booked(), stock.told()) == ({1: 1}, {1: 1})
    stock.assert_nothing_is_left()
