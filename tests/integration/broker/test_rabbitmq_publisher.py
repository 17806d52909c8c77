"""What the publisher puts on the wire, read by a client that knows nothing of outboxkit; and its receipts."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outboxkit import BrokerUnavailable, Message, ids
from outboxkit.brokers import Verdict
from outboxkit.brokers.rabbitmq import RabbitPublisher, connection
from tests.integration.broker.publishing import verdicts
from tests.integration.relay.recording import behind_proxy
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async
from tests.support.tcp_proxy import TcpProxy

CLASSIC = {"x-queue-type": "classic"}
"""Such a queue adds no header of its own."""
CREATED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
async def publisher(broker: PlainClient) -> AsyncIterator[RabbitPublisher]:
    made = RabbitPublisher(broker.url, exchange=broker.exchange, app_id="shop")
    await made.connect()
    yield made
    await made.close()


@pytest.fixture
async def proxied(broker: PlainClient) -> AsyncIterator[tuple[TcpProxy, str]]:
    async with behind_proxy(broker.url) as proxy_and_url:
        yield proxy_and_url


async def test_every_property_is_on_the_wire_as_designed(publisher: RabbitPublisher, broker: PlainClient):
    broker.bind("orders.confirmed", arguments=CLASSIC)
    message = Message(
        id=ids.new(),
        type="OrderConfirmed",
        payload='{"name":"Zoë"}'.encode(),
        key="order-7",
        topic="orders.confirmed",
        headers={"tenant": "a", "number": 5, "on": True, "none": None, "traceparent": "00-1-2-01"},
        correlation_id="story",
        version=2,
        causation_id="cause",
        created_at=CREATED,
        content_encoding="utf-8",
    )
    (receipt,) = await publisher.publish([message])
    assert receipt.verdict is Verdict.CONFIRMED
    received = broker.take()
    assert received is not None
    assert (received.body, received.routing_key) == ('{"name":"Zoë"}'.encode(), "orders.confirmed")
    assert {name: value for name, value in vars(received.properties).items() if value is not None} == {
        "message_id": message.id,
        "type": "OrderConfirmed",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "timestamp": int(CREATED.timestamp()),
        "correlation_id": "story",
        "app_id": "shop",
        "delivery_mode": 2,
        "headers": {
            "tenant": "a",
            "number": 5,
            "on": True,
            "none": None,
            "traceparent": "00-1-2-01",
            "outboxkit-key": "order-7",
            "outboxkit-causation-id": "cause",
            "outboxkit-version": 2,
            "outboxkit-bucket": "2",
        },
    }


async def test_an_exchange_deleted_in_between_blames_no_message(publisher: RabbitPublisher, broker: PlainClient):
    broker.bind("OrderConfirmed")
    assert verdicts(await publisher.publish([made("1")])) == ["confirmed"]
    broker.delete_exchange()
    assert verdicts(await publisher.publish([made("2"), made("3")])) == ["unknown", "unknown"]
    await publisher.connect()  # declares it again
    assert verdicts(await publisher.publish([made("2")])) == ["unroutable"]
    broker.bind("OrderConfirmed")
    assert verdicts(await publisher.publish([made("2")])) == ["confirmed"]


async def test_a_broker_that_does_not_answer_leaves_it_unknown(broker: PlainClient, proxied: tuple[TcpProxy, str]):
    broker.bind("OrderConfirmed")
    proxy, url = proxied
    publisher = RabbitPublisher(url, exchange=broker.exchange, timeout=timedelta(seconds=2))
    await publisher.connect()
    proxy.hold_server()
    receipts = await publisher.publish([made("1"), made("2")])
    assert verdicts(receipts) == ["unknown", "unknown"]
    with pytest.raises(BrokerUnavailable):
        await publisher.publish([made("1")])
    proxy.release()
    await publisher.connect()
    assert verdicts(await publisher.publish([made("1")])) == ["confirmed"]
    await publisher.close()
    assert sorted(received.properties.message_id for received in broker.take_all()) == ["1", "1", "2"]


async def test_a_connection_to_a_broker_that_does_not_say_goodbye_is_closed_all_the_same(
    proxied: tuple[TcpProxy, str],
):
    proxy, url = proxied
    opened = await connection.connect(url, name="test", timeout=10)
    proxy.swallow()
    await connection.close(opened)
    assert opened.is_closed  # else the client library closes it when it is freed, in any thread


async def test_a_large_batch_is_confirmed_whole_and_in_order(publisher: RabbitPublisher, broker: PlainClient):
    broker.bind("OrderConfirmed", arguments=CLASSIC)
    batch = [made(str(number), key=f"key-{number % 100}") for number in range(10_000)]
    assert set(verdicts(await publisher.publish(batch))) == {"confirmed"}
    assert [received.properties.message_id for received in broker.take_all()] == [sent.id for sent in batch]


async def test_a_queue_that_is_deleted_meanwhile_costs_order_once_at_most(
    publisher: RabbitPublisher, broker: PlainClient
):
    broker.bind("OrderConfirmed", arguments=CLASSIC)
    assert verdicts(await publisher.publish([made("0", key="a")])) == ["confirmed"]
    broker.delete_queue()
    batch = [made(str(number), key="a") for number in range(1, 4)]
    assert verdicts(await publisher.publish(batch)) == ["unroutable"] * 3, "all were on their way"
    for _ in range(2):
        assert verdicts(await publisher.publish(batch)) == ["unroutable", "not sent", "not sent"]
    broker.bind("OrderConfirmed", arguments=CLASSIC)
    assert verdicts(await publisher.publish(batch)) == ["confirmed"] * 3
    assert [received.properties.message_id for received in broker.take_all()] == ["1", "2", "3"]


async def test_what_follows_a_message_whose_queue_was_just_unbound_does_not_overtake_it(
    publisher: RabbitPublisher, broker: PlainClient
):
    broker.bind("OrderConfirmed", "OrderShipped", arguments=CLASSIC)
    proven = [made("0", key="a"), made("1", key="a", topic="OrderShipped")]
    assert verdicts(await publisher.publish(proven)) == ["confirmed"] * 2
    broker.unbind("OrderConfirmed")
    batch = [made("2", key="a"), made("3", key="a", topic="OrderShipped"), made("4", key="b", topic="OrderShipped")]
    assert verdicts(await publisher.publish(batch)) == ["unroutable", "not sent", "confirmed"]
    assert [received.properties.message_id for received in broker.take_all()] == ["0", "1", "4"]


async def test_a_peer_that_falls_silent_is_noticed_without_a_publish(
    broker: PlainClient, proxied: tuple[TcpProxy, str]
):
    proxy, url = proxied
    publisher = RabbitPublisher(f"{url}?heartbeat=1", exchange=broker.exchange)
    await publisher.connect()
    proxy.hold_server()

    async def is_gone() -> bool:
        try:
            await publisher.publish([])
        except BrokerUnavailable:
            return True
        return False

    await eventually_async(is_gone)
    proxy.release()
    await publisher.connect()
    assert await publisher.publish([]) == []
    await publisher.close()


def made(id_: str, **more: Any) -> Message:
    return Message(id=id_, type="OrderConfirmed", payload=b"{}", **more)
