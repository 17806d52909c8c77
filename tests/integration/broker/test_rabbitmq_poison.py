"""What the broker itself ends a channel or a connection for, and a broker that blocks its publishers; all for real."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from outboxkit import BrokerUnavailable, Message
from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.rabbitmq import RabbitPublisher, confirm_channel
from outboxkit.brokers.rabbitmq.encode import Encoder
from tests.integration.broker.publishing import verdicts
from tests.integration.relay.recording import behind_proxy
from tests.servers import OwnServer, provide_own_rabbitmq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

MAX_MESSAGE_SIZE = 20_000
CLASSIC = {"x-queue-type": "classic"}


@pytest.fixture(scope="module")
def small_broker() -> Iterator[OwnServer]:
    """A RabbitMQ of this module's own that takes small messages only."""
    server = provide_own_rabbitmq(max_message_size=str(MAX_MESSAGE_SIZE))
    server.start()
    yield server
    server.close()


@pytest.fixture
def small(small_broker: OwnServer) -> Iterator[PlainClient]:
    client = PlainClient(small_broker.url)
    client.bind("OrderConfirmed", arguments=CLASSIC)
    yield client
    client.clean_up()


@pytest.fixture
async def to_small(small: PlainClient) -> AsyncIterator[RabbitPublisher]:
    made = RabbitPublisher(small.url, exchange=small.exchange)
    await made.connect()
    yield made
    await made.close()


@pytest.fixture
async def publisher(broker: PlainClient) -> AsyncIterator[RabbitPublisher]:
    broker.bind("OrderConfirmed", arguments=CLASSIC)
    made = RabbitPublisher(broker.url, exchange=broker.exchange)
    await made.connect()
    yield made
    await made.close()


def made(id_: str, **more: Any) -> Message:
    return Message(**{"id": id_, "type": "OrderConfirmed", "payload": b"{}", **more})


def first_arrivals(client: PlainClient) -> list[str]:
    return list(dict.fromkeys(received.properties.message_id for received in client.take_all()))


@pytest.mark.parametrize("place", [0, 49, 99])
async def test_an_oversized_message_is_found_wherever_it_stands(
    to_small: RabbitPublisher, small: PlainClient, place: int
):
    batch = [
        made(str(number), payload=b"x" * (MAX_MESSAGE_SIZE + 1 if number == place else 10)) for number in range(100)
    ]
    receipts = await to_small.publish(batch)
    assert verdicts(receipts) == ["rejected" if number == place else "confirmed" for number in range(100)]
    assert f"larger than configured max size {MAX_MESSAGE_SIZE}" in str(receipts[place].reason)
    assert first_arrivals(small) == [str(number) for number in range(100) if number != place]


async def test_what_makes_the_broker_close_the_connection_is_found_too(
    publisher: RabbitPublisher, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    class Faulty(Encoder):
        """Ends the frames of one message wrongly: RabbitMQ answers with 501 FRAME_ERROR."""

        def write(self, message: Message, pieces: list[bytes]) -> int:
            size = super().write(message, pieces)
            if message.id == "bad":
                pieces[-1] = b"\x00"
            return size

    monkeypatch.setattr(confirm_channel, "Encoder", Faulty)
    await publisher.close()
    await publisher.connect()
    receipts = await publisher.publish([made("1"), made("2"), made("bad"), made("3")])
    assert verdicts(receipts) == ["confirmed", "confirmed", "rejected", "confirmed"]
    assert "FRAME_ERROR" in str(receipts[2].reason)
    assert first_arrivals(broker) == ["1", "2", "3"]


async def test_a_connection_that_an_operator_closes_blames_nobody(small_broker: OwnServer, small: PlainClient):
    async with behind_proxy(small.url) as (proxy, url):
        publisher = RabbitPublisher(url, exchange=small.exchange, timeout=timedelta(minutes=2))
        await publisher.connect()
        proxy.hold_client()
        publishing = asyncio.create_task(publisher.publish([made("1"), made("2")]))
        await asyncio.to_thread(small_broker.execute, "rabbitmqctl", "close_all_connections", "maintenance")
        receipts = await publishing
        assert verdicts(receipts) == ["unknown", "unknown"]
        said = (
            "CONNECTION_FORCED - maintenance",
            "connection unexpectedly closed",
        )  # the second if the socket is first
        assert any(text in str(receipts[0].reason) for text in said)
        proxy.release()
        await publisher.connect()
        assert verdicts(await publisher.publish([made("1")])) == ["confirmed"]
        await publisher.close()
    small.disconnect()  # it was closed as well


async def test_a_blocked_broker_is_away_and_burns_nothing(
    small_broker: OwnServer, to_small: RabbitPublisher, small: PlainClient
):
    await asyncio.to_thread(small_broker.execute, "rabbitmqctl", "set_disk_free_limit", "1000000GB")
    try:
        to_small._timeout = 1.0
        receipts = await to_small.publish([made(str(number), payload=b"x" * 10_000) for number in range(3000)])
        assert set(verdicts(receipts)) == {"unknown"}
        assert "the broker has blocked publishers: low on disk" in str(receipts[-1].reason)
        for call in (to_small.connect(), to_small.publish([made("later")])):
            with pytest.raises(BrokerUnavailable, match="the broker has blocked publishers: low on disk"):
                await call
    finally:
        await asyncio.to_thread(small_broker.execute, "rabbitmqctl", "set_disk_free_limit", "50MB")
    await eventually_async(lambda: _connects(to_small))
    assert await to_small.publish([made("later")]) == [Receipt(Verdict.CONFIRMED)]
    arrived = first_arrivals(small)
    assert arrived == [*map(str, range(len(arrived) - 1)), "later"], "what had left before came first, in order"


async def _connects(publisher: RabbitPublisher) -> bool:
    try:
        await publisher.connect()
    except BrokerUnavailable:
        return False
    return True
