"""What the subscriber makes of messages from any client; its queues, and its retry steps."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from outboxkit import BrokerUnavailable, ConfigurationError, Message
from outboxkit.brokers.rabbitmq import RabbitPublisher, RabbitSubscriber
from outboxkit.brokers.rabbitmq import subscriber as subscriber_module
from outboxkit.brokers.rabbitmq.topology import declarations
from tests.integration.broker.publishing import subscriber_of
from tests.support.delays import DELAYS, WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually, eventually_async

SENT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


async def test_a_foreign_message_arrives_as_it_was_sent(subscriber: RabbitSubscriber, broker: PlainClient):
    broker.publish(
        b'{"order_id": 1}',
        topic="OrderConfirmed",
        message_id="foreign-1",
        type="OrderConfirmed",
        content_type="application/json",
        timestamp=int(SENT.timestamp()),
        correlation_id="story",
        headers={"tenant": "a", "outboxkit-key": "k", "outboxkit-causation-id": "c", "traceparent": "00-1-2-01"},
    )
    delivery = await subscriber.receive()
    assert delivery is not None
    assert delivery.delivery_headers.attempt == 1
    assert delivery.message == Message(
        id="foreign-1",
        type="OrderConfirmed",
        payload=b'{"order_id": 1}',
        key="k",
        topic="OrderConfirmed",
        headers={"tenant": "a", "traceparent": "00-1-2-01"},
        correlation_id="story",
        causation_id="c",
        created_at=SENT,
    )
    await delivery.ack()
    await subscriber.close()
    assert eventually(broker.depth, lambda depth: depth == 0) == 0


async def test_a_retry_waits_in_its_step_and_comes_back_as_the_next_attempt(
    subscriber: RabbitSubscriber, broker: PlainClient
):
    properties = {
        "message_id": "1",
        "type": "OrderConfirmed",
        "app_id": "foreign",
        "reply_to": "someone",
        "priority": 3,
    }
    broker.publish(b"{}", topic="OrderConfirmed", headers={"tenant": "a"}, **properties)
    first = await subscriber.receive()
    assert first is not None
    assert await first.retry() == DELAYS[0]
    second = await subscriber.receive()
    assert second is not None
    assert (second.delivery_headers.attempt, second.message) == (2, first.message)
    assert await second.retry(timedelta(days=1)) == DELAYS[-1]
    assert await subscriber.waiting_retries() == 1
    waiting = broker.take(WAITING[-1])
    assert waiting is not None
    assert waiting.properties.headers["outboxkit-attempt"] == 3
    assert waiting.properties.headers["tenant"] == "a"
    assert {name: getattr(waiting.properties, name) for name in properties} == properties
    assert waiting.properties.delivery_mode == 2
    assert broker.depth() == 0


async def test_what_the_broker_drops_by_a_limit_of_its_own_is_kept(subscriber: RabbitSubscriber, broker: PlainClient):
    broker.publish(b"{}", topic="OrderConfirmed", message_id="1", type="OrderConfirmed", expiration="1")
    dead = await eventually_async(lambda: asyncio.to_thread(broker.take, f"{broker.queue}.dead"))
    assert dead is not None
    assert dead.properties.message_id == "1"


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
        subscriber = RabbitSubscriber(broker.url, queue, exchange=exchange, topics=["T"], delays=DELAYS)
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
    broker.publish(b"{}", topic="OrderConfirmed", message_id="0", type="OrderConfirmed")
    first = await subscriber.receive()
    assert first is not None
    await first.ack()
    broker.delete_queue()
    broker.bind("OrderConfirmed", arguments=declarations(broker.queue, ordered=False)[broker.queue])
    ids = {str(number) for number in range(1, 100)}
    messages = [(b"{}", {"message_id": number, "type": "OrderConfirmed"}) for number in sorted(ids)]
    broker.publish_all(messages, topic="OrderConfirmed")
    with pytest.raises(BrokerUnavailable, match="deleted"):
        await subscriber.receive()
    await subscriber.connect()
    for _ in range(len(ids)):
        delivery = await subscriber.receive()
        assert delivery is not None
        ids.remove(str(delivery.raw.properties.message_id))
        await delivery.ack()
    assert not ids


async def test_one_with_as_many_unacked_as_it_may_have_is_not_taken_for_forgotten(
    broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber_module, "STALL_SECONDS", 0.05)
    subscriber = subscriber_of(broker, prefetch=1)
    await subscriber.connect()
    for number in "12":
        broker.publish(b"{}", topic="OrderConfirmed", message_id=number, type="OrderConfirmed")
    first = await subscriber.receive()
    waiting = asyncio.create_task(subscriber.receive())
    assert not (await asyncio.wait((waiting,), timeout=0.5))[0]
    assert first is not None
    await first.ack()
    assert await waiting is not None
    await subscriber.close()


async def test_a_retry_without_its_step_gives_the_message_back(subscriber: RabbitSubscriber, broker: PlainClient):
    broker.publish(b"{}", topic="OrderConfirmed", message_id="1", type="OrderConfirmed")
    delivery = await subscriber.receive()
    assert delivery is not None
    broker.delete_queue(WAITING[0])
    with pytest.raises(BrokerUnavailable):
        await delivery.retry()
    await subscriber.connect()
    again = await subscriber.receive()
    assert again is not None
    assert (again.delivery_headers.attempt, again.message) == (1, delivery.message)
    assert await again.retry() == DELAYS[0]


async def test_a_new_binding_is_added_to_an_existing_queue(subscriber: RabbitSubscriber, broker: PlainClient):
    other = RabbitSubscriber(
        broker.url, broker.queue, exchange=broker.exchange, topics=["OrderConfirmed", "OrderShipped"], delays=DELAYS
    )
    await other.connect()
    broker.publish(b"{}", topic="OrderShipped", message_id="1", type="OrderShipped")
    assert await other.receive(wait=False) is not None
    await other.close()


async def test_prefetch_bounds_what_is_pushed_ahead(broker: PlainClient):
    limited = subscriber_of(broker, prefetch=2)
    await limited.connect()
    for number in range(5):
        broker.publish(b"{}", topic="OrderConfirmed", message_id=str(number), type="OrderConfirmed")
    first = await limited.receive()
    assert first is not None
    assert eventually(broker.depth, lambda depth: depth == 3) == 3
    await limited.close()
    assert eventually(broker.depth, lambda depth: depth == 5) == 5
