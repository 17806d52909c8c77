"""One consumer of a queue at a time: RabbitMQ's single active consumer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from outboxkit import ConfigurationError
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from tests.integration.broker.publishing import next_delivery, send, subscriber_of
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async


@pytest.fixture
async def two(broker: PlainClient) -> AsyncIterator[tuple[RabbitSubscriber, RabbitSubscriber]]:
    one, other = subscriber_of(broker, ordered=True), subscriber_of(broker, ordered=True)
    await one.connect()
    await other.connect()
    yield one, other
    await one.close()
    await other.close()


async def is_waiting(subscriber: RabbitSubscriber) -> bool:
    return subscriber._consumed is not None


async def taken(subscriber: RabbitSubscriber) -> str:
    delivery = await next_delivery(subscriber)
    await delivery.ack()
    return getattr(delivery.message, "id", "")


async def test_the_second_consumer_waits_until_the_first_is_gone(
    broker: PlainClient, two: tuple[RabbitSubscriber, RabbitSubscriber]
):
    one, other = two
    send(broker, "1")
    assert await taken(one) == "1"
    waiting = asyncio.create_task(other.receive())
    await eventually_async(lambda: is_waiting(other))
    send(broker, *"23")
    assert [await taken(one), await taken(one)] == ["2", "3"]
    send(broker, *"45")
    await next_delivery(one)
    assert not waiting.done()
    await one.close()
    first = await waiting
    assert first is not None
    assert (getattr(first.message, "id", ""), first.redeliveries > 0) == ("4", True)
    await first.ack()
    assert await taken(other) == "5"


async def test_with_the_prefetch_in_hand_there_is_no_next_one(broker: PlainClient):
    subscriber = subscriber_of(broker, ordered=True, prefetch=2)
    await subscriber.connect()
    send(broker, *"123")
    held = [await subscriber.receive(wait=False) for _ in range(3)]
    assert [delivery and getattr(delivery.message, "id", "") for delivery in held] == ["1", "2", None]
    await subscriber.close()


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_queue_of_the_other_kind_is_a_configuration_error_with_its_cure(broker: PlainClient, ordered: bool):
    first = subscriber_of(broker, ordered=not ordered)
    await first.connect()
    await first.close()
    other = subscriber_of(broker, ordered=ordered)
    cure = rf"x-single-active-consumer.*delete it \(rabbitmqctl delete_queue -p / {broker.queue}\).*--ordered"
    with pytest.raises(ConfigurationError, match=cure):
        await other.connect()


async def test_a_stop_gives_back_every_message_to_its_place(broker: PlainClient):
    ids = [str(number) for number in range(40)]
    one, other = subscriber_of(broker, ordered=True, prefetch=20), subscriber_of(broker, ordered=True)
    await one.connect()
    send(broker, *ids)
    taken_first = [await taken(one) for _ in range(3)]
    in_hand = [await next_delivery(one) for _ in range(5)]
    await one.stop_receiving()
    for delivery in in_hand[1:]:
        await delivery.requeue()
    await in_hand[0].ack()  # its handler has ended meanwhile
    await other.connect()
    later = asyncio.create_task(taken(other))
    await eventually_async(lambda: is_waiting(other))
    await one.close()
    assert [*taken_first, "3", await later, *[await taken(other) for _ in ids[5:]]] == ids
    await other.close()


async def test_one_that_stands_by_is_not_taken_for_forgotten(
    two: tuple[RabbitSubscriber, RabbitSubscriber], broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    """Messages wait, and none is delivered to it, for another one is the active consumer."""
    monkeypatch.setattr("outboxkit.brokers.rabbitmq.subscriber.STALL_SECONDS", 0.05)
    active, standing_by = two
    send(broker, *(str(number) for number in range(100)))
    assert await active.receive() is not None
    waiting = asyncio.create_task(standing_by.receive())
    _, pending = await asyncio.wait((waiting,), timeout=0.5)
    assert pending
    assert standing_by.trouble is None
    waiting.cancel()
