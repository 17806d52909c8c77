"""Retry queues that all queues of a virtual host share: whose copies come back to whom, and what may hold them up."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.brokers.rabbitmq.incoming import RabbitDelivery
from outboxkit.brokers.rabbitmq.topology import UNROUTABLE
from tests.support.delays import DELAYS, DELAYS_TEXT, WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

WINDOW = 32
"""Copies that RabbitMQ hands on from a queue before one of them is confirmed."""


@pytest.fixture
def other(broker: PlainClient) -> Iterator[PlainClient]:
    made = PlainClient(broker.url)
    yield made
    made.clean_up(DELAYS_TEXT.split(","))


@asynccontextmanager
async def subscriber_of(broker: PlainClient, *, url: str | None = None) -> AsyncIterator[RabbitSubscriber]:
    made = RabbitSubscriber(url or broker.url, broker.queue, exchange=broker.exchange, topics=["T"], delays=DELAYS)
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


def publish(broker: PlainClient, *ids: str) -> None:
    for id_ in ids:
        broker.publish(b"{}", topic="T", message_id=id_, type="T")


async def received(subscriber: RabbitSubscriber) -> RabbitDelivery:
    delivery = await asyncio.wait_for(subscriber.receive(), 60)
    assert delivery is not None
    return delivery


async def test_a_queue_is_two_queues_and_its_copies_come_back_to_it_alone(broker: PlainClient, other: PlainClient):
    async with subscriber_of(broker) as one, subscriber_of(other) as two:
        publish(broker, "one")
        publish(other, "two")
        for subscriber in (one, two):
            await (await received(subscriber)).retry()
            assert await subscriber.waiting_retries() == 1
        for subscriber, id_ in ((one, "one"), (two, "two")):
            again = await received(subscriber)
            assert (again.raw.properties.message_id, again.delivery_headers.attempt) == (id_, 2)
            assert again.topic == "T"
            assert await subscriber.waiting_retries() == 0
            await again.ack()
    assert not any(broker.has_queue(f"{broker.queue}.retry.{step}") for step in DELAYS_TEXT.split(","))
    assert [broker.depth(), other.depth()] == [0, 0]


async def test_copies_of_a_deleted_queue_are_kept_and_hold_up_no_other_queue(broker: PlainClient, other: PlainClient):
    ids = {str(number) for number in range(WINDOW + 8)}
    async with subscriber_of(broker) as doomed:
        publish(broker, *ids)
        for _ in ids:
            await (await received(doomed)).retry(DELAYS[1])
    broker.delete_queue()
    async with subscriber_of(other) as healthy:
        publish(other, "healthy")
        await (await received(healthy)).retry(DELAYS[1])
        assert (await received(healthy)).delivery_headers.attempt == 2

        async def kept() -> int:
            for each in await asyncio.to_thread(other.take_all, UNROUTABLE):
                if each.routing_key == broker.queue:
                    assert each.properties.headers["outboxkit-attempt"] == 2
                    ids.discard(each.properties.message_id)
                else:  # of another test
                    other.publish(each.body, queue=UNROUTABLE, **vars(each.properties))
            return len(ids)

        await eventually_async(kept, lambda left: not left)


async def test_copies_whose_queue_is_gone_are_told_when_a_consumer_connects(broker: PlainClient):
    async with subscriber_of(broker):
        pass
    broker.publish(b"{}", queue=UNROUTABLE, message_id="lost", type="T")
    await eventually_async(lambda: asyncio.to_thread(broker.depth, UNROUTABLE))
    with capture_logs() as logs:
        async with subscriber_of(broker):
            pass
    assert [each["queue"] for each in logs if each["log_level"] == "warning"] == [UNROUTABLE]
    broker.take(UNROUTABLE)


async def test_a_retry_queue_that_was_deleted_with_its_exchange_is_declared_again(broker: PlainClient):
    async with subscriber_of(broker) as subscriber:
        publish(broker, "m")
        delivery = await received(subscriber)
        broker._channel().exchange_delete(WAITING[0])
        with pytest.raises(Exception, match=r"NOT_FOUND - no exchange|did not take a copy"):
            await delivery.retry()
        await subscriber.connect()
        await (await received(subscriber)).retry()
        assert (await received(subscriber)).delivery_headers.attempt == 2
