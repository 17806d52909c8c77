"""Queues that are taken as they are, and bindings to exchanges of others, on RabbitMQ."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import BrokerUnavailable, ConfigurationError, inbox, inbox_handler
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.brokers.rabbitmq import subscriber as subscriber_module
from outboxkit.consumer import Consumer
from outboxkit.runtime import compose, settings
from tests.integration.broker.broker_users import broker_user
from tests.integration.broker.publishing import next_delivery, subscriber_of
from tests.integration.consumer.running_consumer import Ordered
from tests.servers import OwnServer
from tests.support.delays import DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "limits": {"x-message-ttl": 3_600_000, "x-max-length": 1000, "x-dead-letter-exchange": "elsewhere"},
    "priorities": {"x-max-priority": 5},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 50},
}
MESSAGE = {"message_id": "m-1", "type": "Ordered"}


@inbox_handler("Work")
async def work(session: AsyncSession, event: Ordered) -> None: ...


@asynccontextmanager
async def consumer(
    broker: PlainClient, database_url: str, function: Callable[..., Any] = work, **more: Any
) -> AsyncIterator[Consumer]:
    options = {"broker_url": broker.url, "exchange": broker.exchange, "queue": broker.queue, "declare": "false"}
    options |= {"database_url": database_url, "retry_delays": DELAYS_TEXT} | more
    async with compose.consumer(settings.load(options), [inbox.handler_of(function)]) as made:
        assert isinstance(made, Consumer)
        yield made


def existing(broker: PlainClient, **more: Any) -> RabbitSubscriber:
    return subscriber_of(broker, exchange=None, topics=["Ordered"], **more)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_queue_of_any_kind_is_consumed_as_it_is_with_retries(
    broker: PlainClient, postgresql_url: str, kind: str
):
    attempts: list[int] = []

    @inbox_handler("FailsOnce")
    async def fails_once(session: AsyncSession, event: Ordered) -> None:
        attempts.append(event.number)
        if len(attempts) == 1:
            raise ValueError("once")

    broker.bind(arguments=KINDS[kind])
    broker.publish(b'{"number":1}', **MESSAGE)
    stop = asyncio.Event()
    async with consumer(broker, postgresql_url, fails_once) as made:
        running = asyncio.create_task(made.run(stop))
        await eventually_async(lambda: asyncio.sleep(0, made.outcomes.total()), lambda count: count == 2)
        stop.set()
        await running
    assert {str(outcome): count for outcome, count in made.outcomes.items()} == {"processed": 1, "retried": 1}
    with pytest.raises(pika.exceptions.UnroutableError):
        broker.publish(b"", topic="Ordered")
    assert not broker.has_queue(f"{broker.queue}.dead")


async def test_an_empty_queue_may_have_no_binding_which_is_said(broker: PlainClient):
    broker.bind(arguments={})
    subscriber = existing(broker)
    with structlog.testing.capture_logs() as logged:
        await subscriber.connect()
    (warning,) = [line for line in logged if line["log_level"] == "warning"]
    assert "is it bound?" in warning["event"]
    assert warning["routing_keys"] == ["Ordered"]
    assert f"destination={broker.queue} routing_key=Ordered" in warning["cure"]
    await subscriber.close()
    broker.publish(b"{}", **MESSAGE)
    with structlog.testing.capture_logs() as logged:
        await subscriber.connect()
    assert logged == []
    await subscriber.close()


async def test_a_queue_that_is_not_there_is_an_error(broker: PlainClient, postgresql_url: str):
    async with consumer(broker, postgresql_url) as made:
        with pytest.raises(ConfigurationError, match=f"no queue '{broker.queue}', and OUTBOXKIT_DECLARE=false"):
            await made.run(asyncio.Event())
    assert not broker.has_queue()


async def test_a_queue_with_other_arguments_says_how_to_take_it_as_it_is(broker: PlainClient, postgresql_url: str):
    broker.bind(arguments={"x-message-ttl": 60_000})
    async with consumer(broker, postgresql_url, declare="true") as made:
        with pytest.raises(ConfigurationError, match=r"inequivalent arg '[\w-]+' for queue .* with --no-declare"):
            await made.run(asyncio.Event())


async def test_dropped_messages_are_taken_if_their_queue_is_there(broker: PlainClient):
    broker.bind(arguments={})
    broker.bind(queue=f"{broker.queue}.dead")
    broker.publish(b"{}", queue=f"{broker.queue}.dead", **MESSAGE)
    subscriber = existing(broker)
    await subscriber.connect()
    delivery = await next_delivery(subscriber)
    assert delivery.dropped
    await subscriber.close()


@pytest.mark.parametrize("wait", [True, False])
async def test_a_stream_is_refused(broker: PlainClient, monkeypatch: pytest.MonkeyPatch, *, wait: bool):
    broker.bind(arguments={"x-queue-type": "stream"})
    subscriber = existing(broker)
    await subscriber.connect()
    if not wait:
        monkeypatch.setattr(subscriber_module, "STALL_SECONDS", 0.5)
        await asyncio.to_thread(lambda: broker.publish(b"{}", **MESSAGE))
        with pytest.raises(BrokerUnavailable, match="the broker delivers none"):
            await subscriber.receive(wait=False)
        return
    receiving = asyncio.create_task(subscriber.receive())
    await eventually_async(lambda: asyncio.sleep(0, subscriber._consumed is not None))
    await asyncio.to_thread(lambda: broker.publish(b"{}", **MESSAGE))
    with pytest.raises(ConfigurationError, match="a stream: it keeps what was acked"):
        await asyncio.wait_for(receiving, 30)
    await subscriber.close()


async def test_a_client_may_set_the_header_of_streams(broker: PlainClient):
    broker.bind(arguments={})
    for number in range(2):
        broker.publish(b"{}", **MESSAGE, headers={"x-stream-offset": 7} if number else {})
    subscriber = existing(broker)
    await subscriber.connect()
    for _ in range(2):
        await (await next_delivery(subscriber)).ack()
    await subscriber.close()


async def test_a_user_who_may_declare_nothing_needs_retry_queues_that_are_there(own_rabbitmq: OwnServer):
    broker = PlainClient(own_rabbitmq.url)
    broker.bind(arguments={})
    with broker_user(own_rabbitmq, write=r"^amq\.default$", read=rf"^{broker.queue}(\.dead)?$") as url:
        subscriber = existing(broker, url=url)
        with pytest.raises(ConfigurationError, match=r"\.retry\.\d+ms.*may not declare them.*once as a user who may"):
            await subscriber.connect()
        once = existing(broker)
        await once.connect()
        await once.close()
        broker.publish(b"{}", **MESSAGE)
        await subscriber.connect()
        await (await next_delivery(subscriber)).retry()
        second = await next_delivery(subscriber)
        assert second.delivery_headers.attempt == 2
        await second.ack()
        await subscriber.close()
    broker.clean_up(DELAYS_TEXT.split(","))


async def test_a_queue_is_bound_to_exchanges_of_others(broker: PlainClient, postgresql_url: str):
    foreign = PlainClient(broker.url)
    bind = f"{foreign.exchange}:orders.*"
    async with consumer(broker, postgresql_url, declare="true", bind=bind) as made:
        with pytest.raises(ConfigurationError, match=f"OUTBOXKIT_BIND: .*no exchange '{foreign.exchange}'"):
            await made.run(asyncio.Event())
    foreign.declare_exchange()
    async with consumer(broker, postgresql_url, declare="true", bind=bind) as made:
        assert (await made.drain(asyncio.Event())).outcomes == {}
    foreign.publish(b'{"number":1}', topic="orders.paid", **MESSAGE)
    broker.publish(b'{"number":2}', topic="Ordered", **MESSAGE | {"message_id": "m-2"})
    async with consumer(broker, postgresql_url, declare="true", bind=bind) as made:
        done = await made.drain(asyncio.Event())
    assert {str(outcome): count for outcome, count in done.outcomes.items()} == {"processed": 2}
    foreign.clean_up()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "a,b", "bind": "x:k"}, "OUTBOXKIT_BIND has x:k for no queue, and .* names a and b: write QUEUE=x:k"),
        ({"queue": "a", "bind": "b=x:k"}, "OUTBOXKIT_BIND has x:k for queue 'b', and OUTBOXKIT_QUEUE names a"),
        ({"queue": "a", "bind": "x:k", "declare": "false"}, "OUTBOXKIT_DECLARE=false binds nothing"),
    ],
)
async def test_a_binding_whose_queue_is_not_clear_is_refused(options: dict[str, str], text: str):
    @inbox_handler("Second", queue="b")
    async def second(session: AsyncSession, event: Ordered) -> None: ...

    @inbox_handler("First", queue="a")
    async def first(session: AsyncSession, event: Ordered) -> None: ...

    chosen = settings.load({"database_url": "sqlite://"} | options)
    with pytest.raises(ConfigurationError, match=text):
        async with compose.consumer(chosen, [inbox.handler_of(each) for each in (first, second)]):
            pass
