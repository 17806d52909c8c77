"""The story without accidents: committed orders have one effect each, rolled back ones none."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from outboxkit.codec import payloads
from tests.acceptance.deployment import PROGRAMS, Deployment
from tests.acceptance.shop import GATE, OrderConfirmed, OrderGated, send, take_orders
from tests.support.polling import eventually


@pytest.mark.parametrize("programs", PROGRAMS)
def test_every_committed_order_has_one_effect(deployment: Deployment, programs: str):
    deployment.programs = programs
    consumer, relay = deployment.consumer(), deployment.relay()
    kept = take_orders(deployment.engine, range(1, 201), roll_back_every=4)
    assert deployment.wait_for_effects(len(kept)) == dict.fromkeys(kept, 1)
    deployment.wait_for_empty_outbox()
    assert [relay.stop(), consumer.stop()] == [0, 0]
    assert consumer.entries("consumer stopped")[0]["processed"] == len(kept) == 150


def test_a_rollback_sends_nothing(deployment: Deployment):
    deployment.declare_queue()
    assert take_orders(deployment.engine, range(1, 11), roll_back_every=1) == set()
    drained = deployment.outboxkit("relay", "--drain")
    assert (drained.returncode, drained.stdout) == (0, "published 0\n")
    assert deployment.broker.depth() == 0


def test_an_event_that_is_delivered_twice_has_one_effect(deployment: Deployment):
    consumer = deployment.consumer()
    for _ in range(2):
        publish(deployment, OrderConfirmed(7, Decimal("1.50")), "delivered-twice")
    eventually(consumer.outcomes, lambda found: len(found) == 2)
    assert sorted(consumer.outcomes()) == ["duplicate", "processed"]
    assert deployment.effects() == {7: 1}


def test_an_event_that_two_consumers_handle_at_once_has_one_effect(deployment: Deployment):
    consumers = [deployment.consumer(OUTBOXKIT_CONCURRENCY="1") for _ in range(2)]
    with deployment.lock_held(GATE):
        for _ in range(2):
            publish(deployment, OrderGated(7), "handled-twice")
        eventually(lambda: deployment.waiting_on("advisory") == 1 and deployment.waiting_on("transactionid") == 1)
        assert deployment.effects() == {}
    outcomes = [eventually(consumer.outcomes) for consumer in consumers]
    assert sorted(outcomes) == [["duplicate"], ["processed"]]
    assert deployment.effects() == {7: 1}


def test_a_message_is_published_not_before_its_time(deployment: Deployment):
    deployment.declare_queue()
    send(deployment.engine, OrderConfirmed(1, Decimal(1)), deliver_at=datetime.now(UTC) + timedelta(hours=1))
    send(deployment.engine, OrderConfirmed(2, Decimal(2)))
    early = deployment.outboxkit("relay", "--drain")
    assert (early.returncode, early.stdout) == (0, "published 1\n1 wait for a later time\n")
    relay, consumer = deployment.relay(), deployment.consumer()
    due = datetime.now(UTC) + timedelta(seconds=3)
    send(deployment.engine, OrderConfirmed(3, Decimal(3)), deliver_at=due)
    assert deployment.wait_for_effects(2) == {2: 1, 3: 1}
    assert datetime.now(UTC) >= due
    assert [relay.stop(), consumer.stop()] == [0, 0]
    assert deployment.pending() == 1


def publish(deployment: Deployment, event: OrderConfirmed | OrderGated, message_id: str) -> None:
    """Publish as a foreign client does."""
    name = type(event).__name__
    deployment.broker.publish(payloads.encode(event), topic=name, message_id=message_id, type=name)
