"""What a consumer holds is bounded by bytes, whatever its prefetch."""

import asyncio

import pytest

from outboxkit.brokers.rabbitmq import RabbitSubscriber, incoming, taps
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient
from tests.support.polling import DEADLINE_SECONDS, eventually, eventually_async

MIB = 1024 * 1024
LIMIT, COUNT = 4 * MIB, 30


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_UNACKED_BYTES", LIMIT)
    monkeypatch.setattr(taps, "SIGN_OF_LIFE_SECONDS", 0.1)


def subscriber_of(broker: PlainClient, heartbeat: int = 20) -> RabbitSubscriber:
    url = f"{broker.url}?heartbeat={heartbeat}"
    return RabbitSubscriber(url, broker.queue, exchange=broker.exchange, topics=["T"], delays=DELAYS, prefetch=500)


def publish(broker: PlainClient, count: int = COUNT, size: int = MIB, **properties: object) -> None:
    messages = [(b"x" * size, {"message_id": str(number), "type": "T", **properties}) for number in range(count)]
    broker.publish_all(messages, topic="T")


async def take_all_there_is(subscriber: RabbitSubscriber) -> list[object]:
    """Whatever arrives without anything being settled."""
    at_work, held = subscriber._channel, list[object]()
    assert at_work is not None
    while at_work._acks.unacked_bytes <= LIMIT:
        held.append(await asyncio.wait_for(subscriber.receive(), DEADLINE_SECONDS))
    while True:
        try:
            held.append(await asyncio.wait_for(subscriber.receive(), 2))
        except TimeoutError:
            return held


async def test_above_the_limit_nothing_more_is_read_until_something_is_settled(broker: PlainClient):
    subscriber = subscriber_of(broker, heartbeat=1)
    await subscriber.connect()
    await asyncio.to_thread(publish, broker)
    held = await take_all_there_is(subscriber)
    at_work = subscriber._channel
    assert at_work is not None
    assert LIMIT < at_work._acks.unacked_bytes < LIMIT + 2 * MIB
    assert len(held) <= 6
    assert await subscriber.receive(wait=False) is None, "it cannot know, and says so at once"
    await asyncio.sleep(3.5)  # longer than the client would wait for a heartbeat that it does not read
    assert at_work.lost is None
    ids = []
    for _ in range(COUNT):
        delivery = held.pop(0) if held else await asyncio.wait_for(subscriber.receive(), 10)
        ids.append(int(delivery.message.id))  # type: ignore[attr-defined]
        await delivery.ack()  # type: ignore[attr-defined]
        assert at_work._acks.unacked_bytes < LIMIT + 2 * MIB
    assert sorted(ids) == list(range(COUNT))
    assert at_work._acks.unacked_bytes == 0
    await subscriber.close()
    assert eventually(broker.depth, lambda depth: depth == 0) == 0


async def test_a_stop_gives_back_what_was_not_read(broker: PlainClient):
    subscriber = subscriber_of(broker)
    await subscriber.connect()
    await asyncio.to_thread(publish, broker)
    held = await take_all_there_is(subscriber)
    await subscriber.stop_receiving()
    await held[0].ack()  # type: ignore[attr-defined]
    await subscriber.close()
    assert await eventually_async(lambda: asyncio.to_thread(broker.depth), lambda depth: depth == COUNT - 1)


async def test_a_message_larger_than_the_limit_is_read_all_the_same(broker: PlainClient):
    subscriber = subscriber_of(broker)
    await subscriber.connect()
    await asyncio.to_thread(publish, broker, 3, LIMIT + MIB)
    for _ in range(3):
        delivery = await asyncio.wait_for(subscriber.receive(), 30)
        assert delivery is not None
        await delivery.ack()
    await subscriber.close()


async def test_headers_weigh_what_they_take_up(broker: PlainClient):
    subscriber = subscriber_of(broker)
    await subscriber.connect()
    headers = {f"{number:05}": None for number in range(10_000)}
    await asyncio.to_thread(publish, broker, COUNT, 2, headers=headers)
    held = await take_all_there_is(subscriber)
    assert len(held) < COUNT, "70 kB of headers each, and the limit is 4 MiB"
    await subscriber.close()
