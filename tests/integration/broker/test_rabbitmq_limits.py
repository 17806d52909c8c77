"""A broker's own limits: how often it delivers a message, and how much memory it has."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from outboxkit import BrokerUnavailable, Message
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from tests.integration.broker.publishing import next_delivery, send, subscriber_of
from tests.servers import OwnServer
from tests.support.delays import DELAYS, DELAYS_TEXT, WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually, eventually_async


@pytest.fixture
def client(own_rabbitmq: OwnServer) -> Iterator[PlainClient]:
    made = PlainClient(own_rabbitmq.url)
    yield made
    made.clean_up(DELAYS_TEXT.split(","))


@pytest.fixture
def limited(own_rabbitmq: OwnServer, client: PlainClient) -> Iterator[None]:
    """A policy that lets a message come back twice."""
    name, definition = client.queue, '{"delivery-limit": 2}'
    own_rabbitmq.execute("rabbitmqctl", "set_policy", name, f"^{name}$", definition, "--apply-to", "queues")
    yield
    own_rabbitmq.execute("rabbitmqctl", "clear_policy", name)


async def test_what_exceeds_the_delivery_limit_arrives_as_dropped(limited: None, client: PlainClient):
    subscriber = subscriber_of(client, topics=["orders.eu"])
    await subscriber.connect()
    send(client, "poison", topic="orders.eu", headers={"a": 1})
    counts = []
    for _ in range(3):
        delivery = await next_delivery(subscriber)
        counts.append(delivery.redeliveries)
        assert not delivery.dropped
        await delivery.requeue()
    assert counts == [0, 1, 2]
    await eventually_async(lambda: arrived(client, f"{client.queue}.dead"))
    dropped = await next_delivery(subscriber)
    assert (dropped.dropped, dropped.redeliveries) == (True, 0)
    assert dropped.message == Message(
        id="poison", type="OrderConfirmed", payload=b"{}", topic="orders.eu", headers={"a": 1}
    )
    await dropped.requeue_fresh()
    again = await next_delivery(subscriber)
    assert (again.dropped, again.message) == (True, dropped.message)
    await again.ack()
    await subscriber.close()
    assert (client.depth(), client.depth(f"{client.queue}.dead")) == (0, 0)


async def arrived(client: PlainClient, queue: str) -> bool:
    """Whether the broker has moved something there, or it has been pushed on already."""
    return await asyncio.to_thread(lambda: client.depth(queue) > 0 or client.consumers(queue) > 0)


async def test_a_renewed_message_outlives_the_delivery_limit(limited: None, client: PlainClient):
    subscriber = subscriber_of(client)
    await subscriber.connect()
    send(client, "innocent")
    for _ in range(6):
        delivery = await next_delivery(subscriber)
        assert not delivery.dropped
        await (delivery.requeue_fresh() if delivery.redeliveries == 2 else delivery.requeue())
    await subscriber.close()
    assert eventually(client.depth, lambda depth: depth == 1) == 1


async def test_while_the_broker_is_short_of_memory_only_what_is_to_be_copied_waits(
    own_rabbitmq: OwnServer, client: PlainClient
):
    subscriber = subscriber_of(client, timeout=timedelta(seconds=3), prefetch=2)
    await subscriber.connect()
    send(client, *"12345")
    first, second = await next_delivery(subscriber), await next_delivery(subscriber)
    await first.retry()
    ctl = "rabbitmqctl"
    await asyncio.to_thread(own_rabbitmq.execute, ctl, "set_vm_memory_high_watermark", "0.000001")
    try:
        retrying = asyncio.create_task(second.retry())
        for _ in range(4):  # each but the first is pushed only when the broker has heard the ack of one before
            delivery = await next_delivery(subscriber)
            await delivery.ack()
        await subscriber.connect()
        await asyncio.wait((retrying,), timeout=3.5)
        assert not retrying.done(), "longer than its limit"
    finally:
        await asyncio.to_thread(own_rabbitmq.execute, ctl, "set_vm_memory_high_watermark", "0.6")
    await retrying
    again = await next_delivery(subscriber)
    assert isinstance(again.message, Message)
    assert (again.message.id, again.delivery_headers.attempt, again.redeliveries) == ("2", 2, 0)
    await again.ack()
    await subscriber.close()


LATER = DELAYS[-1]


@pytest.fixture
def full(own_rabbitmq: OwnServer, client: PlainClient) -> Iterator[str]:
    """A retry queue that takes hardly anything, by policy; its name."""
    name, step, ctl = client.queue, WAITING[-1], "rabbitmqctl"
    own_rabbitmq.execute(ctl, "set_policy", name, f"^{step}$", '{"max-length": 1}', "--apply-to", "queues")
    yield step
    own_rabbitmq.execute(ctl, "clear_policy", name)


async def retry_until_full(subscriber: RabbitSubscriber) -> tuple[int, list["asyncio.Task[timedelta]"]]:
    """How many copies the queue took, and the three retries that wait."""
    started: list[asyncio.Task[timedelta]] = []
    waiting: list[asyncio.Task[timedelta]] = []
    while len(waiting) < 3:
        delivery = await next_delivery(subscriber)
        started.append(asyncio.create_task(delivery.retry(LATER)))
        await asyncio.wait(started[-1:], timeout=0.7)
        waiting = [retry for retry in started if not retry.done()]
    return len(started) - len(waiting), waiting


async def test_a_stop_does_not_wait_for_a_full_retry_queue(full: str, client: PlainClient):
    subscriber = subscriber_of(client)
    await subscriber.connect()
    send(client, *"123456789")
    running = await next_delivery(subscriber)
    took, waiting = await retry_until_full(subscriber)
    await subscriber.stop_receiving()
    for retry in waiting:
        with pytest.raises(BrokerUnavailable, match="nacked by the broker"):
            await retry
    await running.ack()
    await subscriber.close()
    assert eventually(client.depth, lambda depth: depth == 9 - 1 - took) == 9 - 1 - took
