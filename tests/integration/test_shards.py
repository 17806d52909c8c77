"""Shards of an ordered queue at the broker, and what refuses them."""

import pytest

from outboxkit import ConfigurationError, compose, inbox
from outboxkit.brokers.rabbitmq import RabbitSubscriber, ShardMove, shards
from outboxkit.settings import Settings, load
from outboxkit.sources import Shards
from tests.acceptance import shop
from tests.delays import DELAYS
from tests.plain_client import PlainClient


def move_of(broker: PlainClient) -> ShardMove:
    return ShardMove(broker.url, broker.exchange, ["T"], DELAYS)


def publish(broker: PlainClient, keys: int, prefix: str = "") -> None:
    for number in range(keys):
        headers = {"outboxkit-key": f"k{number}"}
        broker.publish(b"{}", topic="T", message_id=f"{prefix}{number}", type="T", headers=headers)


async def received(broker: PlainClient, queue: str, shards: Shards) -> set[str]:
    subscriber = RabbitSubscriber(
        broker.url, queue, exchange=broker.exchange, topics=["T"], delays=DELAYS, ordered=True,
        shards=shards,
    )  # fmt: skip
    await subscriber.connect()
    ids = set()
    while (delivery := await subscriber.receive(wait=False)) is not None:
        ids.add(getattr(delivery.message, "id", ""))
        await delivery.ack()
    assert await subscriber.is_drained()
    await subscriber.close()
    return ids


async def test_keys_are_divided_among_the_shards_and_each_stays_in_its_own(broker: PlainClient):
    three = Shards(broker.queue, 3)
    assert not await move_of(broker).begin(Shards(broker.queue, 1), three)
    publish(broker, 60)
    first = [await received(broker, name, three) for name in three.names]
    assert sum(map(len, first)) == 60
    assert all(len(ids) > 5 for ids in first)
    publish(broker, 60)
    assert [await received(broker, name, three) for name in three.names] == first
    assert await received(broker, broker.queue, three) == set()


async def test_a_move_leaves_what_has_arrived_where_it_is_and_sends_the_rest_to_the_new_shards(broker: PlainClient):
    one, three = Shards(broker.queue, 1), Shards(broker.queue, 3)
    await received(broker, broker.queue, one)
    publish(broker, 10, "old-")
    assert await move_of(broker).begin(one, three)
    assert not await move_of(broker).is_empty(broker.queue)
    publish(broker, 10, "new-")
    assert await received(broker, broker.queue, three) == {f"old-{number}" for number in range(10)}
    assert await move_of(broker).is_empty(broker.queue)
    assert await move_of(broker).begin(three, one)
    publish(broker, 10, "newest-")
    assert await received(broker, broker.queue, one) == {f"newest-{number}" for number in range(10)}
    split = [await received(broker, name, three) for name in three.names]
    assert set().union(*split) == {f"new-{number}" for number in range(10)}


async def test_a_broker_without_the_exchange_is_told_which_plugin_to_enable(
    broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards, "KIND", "x-not-there")
    with pytest.raises(ConfigurationError, match="rabbitmq-plugins enable rabbitmq_consistent_hash_exchange"):
        await move_of(broker).begin(Shards(broker.queue, 1), Shards(broker.queue, 2))


def settings_of(broker: PlainClient, **options: object) -> Settings:
    urls = {"database_url": "postgresql://localhost/nothing", "broker_url": broker.url}
    return load(urls | {"queue": "steps", "ordered": True, "shards": 2} | options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ordered": False}, "Add --ordered"),
        ({"queue": "steps,others"}, "one is accepted with shards"),
        ({"declare": False}, "shards have to be declared"),
        ({"queue": "q" * 195}, "194 are accepted"),
    ],
)
async def test_settings_that_contradict_shards_are_refused(broker: PlainClient, options: dict[str, object], said: str):
    with pytest.raises(ConfigurationError, match=said):
        async with compose.consumer(settings_of(broker, **options), inbox.handlers_in([shop])):
            pass
