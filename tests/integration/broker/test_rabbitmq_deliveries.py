"""Deliveries as our own code reads and settles them, on a real broker: foreign ones, large ones, and losses."""

import asyncio
from typing import Any

import pytest
from pamqp import commands, frame

from outboxkit import BrokerUnavailable, Message
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.codec.envelopes.envelope import Malformed
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually, eventually_async

NESTED: Any = [1]
for _ in range(100):
    NESTED = [NESTED]
GOOD = {"message_id": "good", "type": "OrderConfirmed"}


@pytest.mark.parametrize(
    ("properties", "reason", "id_"),
    [
        ({"message_id": "m", "type": "T", "timestamp": 2**62}, "its timestamp cannot be read", "m"),
        ({"message_id": "m", "type": "T", "correlation_id": b"\xff\xfe"}, "its correlation_id cannot be read", "m"),
        ({"message_id": b"\xff\xfe", "type": "T"}, "its message_id cannot be read", None),
        ({"message_id": "m", "type": "T", "headers": {"a": NESTED}}, "its headers cannot be read", "m"),
    ],
    ids=["timestamp", "text", "id", "headers"],
)
async def test_what_cannot_be_read_is_one_malformed_delivery_among_others(
    subscriber: RabbitSubscriber, broker: PlainClient, properties: dict[str, Any], reason: str, id_: str
):
    broker.publish(b"body", topic="OrderConfirmed", **properties)
    broker.publish(b"{}", topic="OrderConfirmed", **GOOD)
    bad, good = await subscriber.receive(), await subscriber.receive()
    assert bad is not None
    assert good is not None
    assert isinstance(bad.message, Malformed)
    assert bad.message.reason.startswith(reason)
    assert (bad.message.body, bad.message.message_id) == (b"body", id_)
    assert isinstance(good.message, Message)
    await bad.ack()
    await good.ack()
    await subscriber.close()
    assert broker.depth() == 0


async def test_what_was_acked_leaves_before_the_connection_does(broker: PlainClient, subscriber: RabbitSubscriber):
    broker.publish_all([(b"{}", GOOD)] * 500, topic="OrderConfirmed")
    for _ in range(300):
        delivery = await subscriber.receive()
        assert delivery is not None
        await delivery.ack()
    await subscriber.close()
    assert eventually(broker.depth, lambda depth: depth == 200) == 200


async def test_bodies_larger_than_a_frame_arrive_whole(broker: PlainClient, subscriber: RabbitSubscriber):
    for size in (0, 131_064, 131_065, 3_000_000):
        broker.publish(b"x" * size, topic="OrderConfirmed", **GOOD)
        delivery = await subscriber.receive()
        assert delivery is not None
        assert delivery.message.payload == b"x" * size
        await delivery.ack()


async def test_a_channel_that_the_broker_closes_is_a_broker_away(broker: PlainClient, subscriber: RabbitSubscriber):
    for number in range(3):
        broker.publish(b"{}", topic="OrderConfirmed", message_id=str(number), type="OrderConfirmed")
    first = await subscriber.receive()
    assert first is not None
    assert subscriber._channel is not None
    subscriber._channel._write(frame.marshal(commands.Basic.Ack(99), subscriber._channel._channel))
    with pytest.raises(BrokerUnavailable, match="PRECONDITION_FAILED - unknown delivery tag 99"):
        await receive_for_ever(subscriber)
    with pytest.raises(BrokerUnavailable):
        await first.ack()
    await subscriber.connect()
    again = [await subscriber.receive() for _ in range(3)]
    assert {each.message.id for each in again if each and isinstance(each.message, Message)} == {"0", "1", "2"}
    assert all(each and each.redeliveries for each in again), "all three were on their way"


async def test_after_ceasing_the_prefetch_is_for_others_and_what_runs_is_settled(
    broker: PlainClient, subscriber: RabbitSubscriber
):
    for number in range(10):
        broker.publish(b"{}", topic="OrderConfirmed", message_id=str(number), type="OrderConfirmed")
    running = await subscriber.receive()
    assert running is not None
    await subscriber.stop_receiving()
    assert await eventually_async(lambda: asyncio.to_thread(broker.depth), lambda depth: depth == 9) == 9
    await running.ack()
    await subscriber.close()
    await subscriber.connect()
    found = [await subscriber.receive() for _ in range(9)]
    assert {each.message.id for each in found if each and isinstance(each.message, Message)} == set("123456789")


async def receive_for_ever(subscriber: RabbitSubscriber) -> None:
    while True:
        await subscriber.receive()
