"""The queues of a subscriber, what the broker pushes to it, and the loss of its channel."""

import asyncio

import pytest
from pamqp import commands, frame

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq import RabbitPublisher, RabbitSubscriber
from outboxkit.brokers.rabbitmq import subscriber as subscriber_module
from outboxkit.brokers.rabbitmq.topology import declarations
from tests.integration.broker.publishing import next_delivery, send, subscriber_of
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually


async def test_what_the_broker_will_never_declare_is_a_configuration_error(broker: PlainClient):
    broker.declare_exchange("fanout")
    other_kind = rf"OUTBOXKIT_EXCHANGE is '{broker.exchange}'.*inequivalent arg 'type'.*received 'topic' but"
    for queue, exchange, text in (
        (broker.queue, broker.exchange, other_kind),
        (broker.queue, "amq.mine", "OUTBOXKIT_EXCHANGE is 'amq.mine'.*reserved prefix"),
        (broker.queue, "", "OUTBOXKIT_EXCHANGE is ''"),
        (broker.queue, "e" * 300, "OUTBOXKIT_EXCHANGE is 'eee.*Max length exceeded"),
        ("amq.mine", "amq.topic", "OUTBOXKIT_QUEUE is 'amq.mine'"),
        ("two lines\n", "amq.topic", "OUTBOXKIT_QUEUE is .*letters, digits"),
    ):
        subscriber = subscriber_of(broker, queue, exchange=exchange)
        with pytest.raises(ConfigurationError, match=text):
            await subscriber.connect()
        await subscriber.close()
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    with pytest.raises(ConfigurationError, match=other_kind):
        await publisher.connect()
    await publisher.close()


async def test_a_queue_that_is_deleted_and_made_again_at_once(
    subscriber: RabbitSubscriber, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    """RabbitMQ 3.10 keeps the consumer, and delivers nothing to it."""
    monkeypatch.setattr(subscriber_module, "STALL_SECONDS", 0.3)
    send(broker, "0")
    await (await next_delivery(subscriber)).ack()
    broker.delete_queue()
    broker.bind("OrderConfirmed", arguments=declarations(broker.queue, ordered=False)[broker.queue])
    ids = {str(number) for number in range(1, 100)}
    messages = [(b"{}", {"message_id": number, "type": "OrderConfirmed"}) for number in sorted(ids)]
    broker.publish_all(messages, topic="OrderConfirmed")
    with pytest.raises(BrokerUnavailable, match="deleted"):
        await subscriber.receive()
    await subscriber.connect()
    for _ in range(len(ids)):
        delivery = await next_delivery(subscriber)
        ids.remove(str(delivery.raw.properties.message_id))
        await delivery.ack()
    assert not ids


async def test_one_with_as_many_unacked_as_it_may_have_is_not_taken_for_forgotten(
    broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber_module, "STALL_SECONDS", 0.05)
    subscriber = subscriber_of(broker, prefetch=1)
    await subscriber.connect()
    send(broker, *"12")
    first = await next_delivery(subscriber)
    waiting = asyncio.create_task(subscriber.receive())
    assert not (await asyncio.wait((waiting,), timeout=0.5))[0]
    await first.ack()
    assert await waiting is not None
    await subscriber.close()


async def test_a_new_binding_is_added_to_an_existing_queue(subscriber: RabbitSubscriber, broker: PlainClient):
    other = subscriber_of(broker, topics=["OrderConfirmed", "OrderShipped"])
    await other.connect()
    send(broker, "1", topic="OrderShipped")
    assert await other.receive(wait=False) is not None
    await other.close()


async def test_prefetch_bounds_what_is_pushed_ahead(broker: PlainClient):
    limited = subscriber_of(broker, prefetch=2)
    await limited.connect()
    send(broker, *"12345")
    await next_delivery(limited)
    assert eventually(broker.depth, lambda depth: depth == 3) == 3
    await limited.close()
    assert eventually(broker.depth, lambda depth: depth == 5) == 5


async def test_what_was_acked_leaves_before_the_connection_does(broker: PlainClient, subscriber: RabbitSubscriber):
    broker.publish_all([(b"{}", {"message_id": "m", "type": "OrderConfirmed"})] * 500, topic="OrderConfirmed")
    for _ in range(300):
        await (await next_delivery(subscriber)).ack()
    await subscriber.close()
    assert eventually(broker.depth, lambda depth: depth == 200) == 200


async def test_a_channel_that_the_broker_closes_is_a_broker_away(broker: PlainClient, subscriber: RabbitSubscriber):
    send(broker, *"012")
    first = await next_delivery(subscriber)
    assert subscriber._channel is not None
    subscriber._channel._write(frame.marshal(commands.Basic.Ack(99), subscriber._channel._channel))
    with pytest.raises(BrokerUnavailable, match="PRECONDITION_FAILED - unknown delivery tag 99"):
        await receive_for_ever(subscriber)
    with pytest.raises(BrokerUnavailable):
        await first.ack()
    await subscriber.connect()
    again = [await next_delivery(subscriber) for _ in range(3)]
    assert {each.raw.properties.message_id for each in again} == {"0", "1", "2"}
    assert all(each.redeliveries for each in again), "all three were on their way"


async def receive_for_ever(subscriber: RabbitSubscriber) -> None:
    while True:
        await subscriber.receive()
