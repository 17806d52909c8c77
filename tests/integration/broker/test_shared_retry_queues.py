"""Retry queues that all queues of a virtual host share: whose copies come back to whom, and what may hold them up."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import make_url
from structlog.testing import capture_logs

from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.brokers.rabbitmq.copies import OLD_CONNECTION_SECONDS, RetryPublisher
from outboxkit.brokers.rabbitmq.topology import UNROUTABLE, CopyRoute
from outboxkit.codec.headers import DeliveryHeaders
from tests.integration.broker.broker_users import broker_user
from tests.integration.broker.publishing import next_delivery, send, subscriber_of
from tests.servers import OwnServer
from tests.support.delays import DELAYS, DELAYS_TEXT, WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async
from tests.unit.brokers.rabbitmq.test_copies import arrived

WINDOW = 32
"""Copies that RabbitMQ hands on from a queue before one of them is confirmed."""
ROOM = 20
"""Copies for which a full queue has room."""


@pytest.fixture
def other(broker: PlainClient) -> Iterator[PlainClient]:
    made = PlainClient(broker.url)
    yield made
    made.clean_up(DELAYS_TEXT.split(","))


@asynccontextmanager
async def connected(broker: PlainClient) -> AsyncIterator[RabbitSubscriber]:
    made = subscriber_of(broker)
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


async def test_a_queue_is_two_queues_and_its_copies_come_back_to_it_alone(broker: PlainClient, other: PlainClient):
    async with connected(broker) as one, connected(other) as two:
        send(broker, "one")
        send(other, "two")
        for subscriber in (one, two):
            await (await next_delivery(subscriber)).retry()
            assert await subscriber.waiting_retries() == 1
        for subscriber, id_ in ((one, "one"), (two, "two")):
            again = await next_delivery(subscriber)
            assert (again.raw.properties.message_id, again.delivery_headers.attempt) == (id_, 2)
            assert again.topic == "OrderConfirmed"
            assert await subscriber.waiting_retries() == 0
            await again.ack()
    assert not any(broker.has_queue(f"{broker.queue}.retry.{step}") for step in DELAYS_TEXT.split(","))
    assert [broker.depth(), other.depth()] == [0, 0]


async def test_copies_of_a_deleted_queue_are_kept_and_hold_up_no_other_queue(broker: PlainClient, other: PlainClient):
    ids = {str(number) for number in range(WINDOW + 8)}
    async with connected(broker) as doomed:
        send(broker, *ids)
        for _ in ids:
            await (await next_delivery(doomed)).retry(DELAYS[1])
    broker.delete_queue()
    async with connected(other) as healthy:
        send(other, "healthy")
        await (await next_delivery(healthy)).retry(DELAYS[1])
        assert (await next_delivery(healthy)).delivery_headers.attempt == 2

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
    async with connected(broker):
        pass
    broker.publish(b"{}", queue=UNROUTABLE, message_id="lost", type="T")
    await eventually_async(lambda: asyncio.to_thread(broker.depth, UNROUTABLE))
    with capture_logs() as logs:
        async with connected(broker):
            pass
    assert [each["queue"] for each in logs if each["log_level"] == "warning"] == [UNROUTABLE]
    broker.take(UNROUTABLE)


async def test_a_retry_queue_that_was_deleted_with_its_exchange_is_declared_again(broker: PlainClient):
    async with connected(broker) as subscriber:
        send(broker, "m")
        delivery = await next_delivery(subscriber)
        broker._channel().exchange_delete(WAITING[0])
        with pytest.raises(Exception, match=r"NOT_FOUND - no exchange|did not take a copy"):
            await delivery.retry()
        await subscriber.connect()
        await (await next_delivery(subscriber)).retry()
        assert (await next_delivery(subscriber)).delivery_headers.attempt == 2


@pytest.fixture
async def copies(broker: PlainClient) -> AsyncIterator[RetryPublisher]:
    made = RetryPublisher(broker.url, name="test", timeout=30)
    yield made
    await made.close()


@pytest.mark.parametrize("name", [lambda _: "same", str], ids=["one id", "an id each"])
async def test_copies_wait_for_room_and_then_are_there_once_each(
    copies: RetryPublisher, broker: PlainClient, name: Callable[[int], str]
):
    arguments = {"x-max-length": ROOM, "x-overflow": "reject-publish"}
    step, stopped = broker.bind(arguments=arguments), asyncio.Event()

    def put(id_: str, number: int) -> "asyncio.Task[None]":
        put_it = copies.put(
            arrived(id_, str(number).encode()),
            CopyRoute("", step),
            delivery_headers=DeliveryHeaders(),
            topic="orders",
            stopped=stopped,
        )
        return asyncio.create_task(put_it)

    await asyncio.gather(*(put(f"filler {number}", number) for number in range(ROOM)))
    assert copies._channel is not None
    copies._opened_at -= 2 * OLD_CONNECTION_SECONDS  # so that the first nack replaces the connection
    with capture_logs() as logs:
        waiting = [put(name(number), number) for number in range(ROOM)]
        await eventually_async(lambda: asyncio.sleep(0, bool(logs)))
        assert [each.exception() for each in waiting if each.done()] == []
        assert len(await asyncio.to_thread(broker.take_all, step)) == ROOM
        await asyncio.gather(*waiting)
    copied = await asyncio.to_thread(broker.take_all, step)
    assert sorted(int(each.body) for each in copied) == list(range(ROOM))
    assert {each["event"] for each in logs} == {"a queue takes no copies, waiting", "the queue takes copies again"}


async def test_a_copy_that_the_user_may_not_publish_waits_until_the_right_is_given_back(own_rabbitmq: OwnServer):
    """The consumer's own channel stays open, so its other messages are neither delivered again nor held up."""
    broker, user_may = PlainClient(own_rabbitmq.url), {"configure": ".*", "write": ".*", "read": ".*"}
    with broker_user(own_rabbitmq, **user_may) as url:
        subscriber = subscriber_of(broker, url=url)
        await subscriber.connect()
        send(broker, "refused", "healthy")
        refused, healthy = [await next_delivery(subscriber) for _ in range(2)]
        user = str(make_url(url).username)

        async def give(write: str) -> None:
            await asyncio.to_thread(own_rabbitmq.execute, "rabbitmqctl", "set_permissions", user, ".*", write, ".*")

        await give(f"^{broker.queue}")
        with capture_logs() as logs:
            retrying = asyncio.create_task(refused.retry())
            await eventually_async(lambda: asyncio.sleep(0, bool(logs) or retrying.done()))
            assert not retrying.done()
            await healthy.ack()
            await give(".*")
            await retrying
        again = await next_delivery(subscriber)
        assert (again.raw.properties.message_id, again.delivery_headers.attempt) == ("refused", 2)
        await again.ack()
        await subscriber.close()
    assert [each["event"] for each in logs] == ["a queue takes no copies, waiting", "the queue takes copies again"]
    assert f"refused for user '{user}'" in logs[0]["error"]
    assert broker.depth() == 0
    broker.clean_up(DELAYS_TEXT.split(","))
