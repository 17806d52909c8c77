"""Shards of an ordered queue at the broker, and what refuses them."""

import asyncio
from datetime import timedelta
from typing import Any

import pika.exceptions  # type: ignore[import-untyped]
import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import ConfigurationError, inbox
from outboxkit.brokers.rabbitmq import RabbitSubscriber, ShardMove
from outboxkit.brokers.rabbitmq.incoming import RabbitDelivery
from outboxkit.consumer import Concurrency, Consumer, ShardedConsumer, membership, shards
from outboxkit.message import Message
from outboxkit.runtime import compose, process
from outboxkit.runtime.settings import Settings, load
from outboxkit.runtime.sources import Shards
from outboxkit.tables import shard_member, sharding
from tests.acceptance import shop
from tests.integration.broker.publishing import subscriber_of
from tests.integration.relay.recording import behind_proxy
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient, keyed
from tests.support.polling import eventually_async


def move_of(broker: PlainClient) -> ShardMove:
    return ShardMove(broker.url, broker.exchange, ["T"], DELAYS)


def publish(broker: PlainClient, keys: int, prefix: str = "") -> None:
    for number in range(keys):
        broker.publish(b"{}", topic="T", message_id=f"{prefix}{number}", type="T", headers=keyed(f"k{number}"))


def ordered(broker: PlainClient, queue: str, **more: Any) -> RabbitSubscriber:
    return subscriber_of(broker, queue, topics=["T"], ordered=True, **more)


def key_of(delivery: RabbitDelivery) -> str:
    assert isinstance(delivery.message, Message)
    return delivery.message.key or ""


async def moved(broker: PlainClient, before: Shards, after: Shards, move: int) -> tuple[str, ...]:
    old = await move_of(broker).begin(before, after, move)
    await move_of(broker).mark(after, old, move)
    return old


async def received(broker: PlainClient, queue: str, shards: Shards, *, move: int | None = None) -> set[str]:
    subscriber = ordered(broker, queue, shards=shards)
    await subscriber.connect()
    ids, last = set(), None
    while (delivery := await subscriber.receive(wait=False)) is not None:
        ids.add(getattr(delivery.message, "id", ""))
        if last is not None:
            await last.ack()
        last = delivery
    if move is not None:
        assert subscriber.keys_left(move) == (() if last is None else (key_of(last),)), "the last one is not settled"
    if last is not None:
        await last.ack()
    if move is not None:
        assert subscriber.keys_left(move) == ()
        assert subscriber.keys_left(move + 1) is None
    subscriber.follow(move or 0, is_settled=True)
    await subscriber.close()
    return ids


async def test_the_shard_of_a_message_follows_from_its_key_alone(broker: PlainClient):
    """Whatever the order in which the broker comes to know of the shards, as when it starts."""
    three = Shards(broker.queue, 3)
    assert await moved(broker, Shards(broker.queue, 1), three, 1) == ()
    for name in three.names[:2]:
        broker.delete_queue(name)
    await move_of(broker).bind(three)
    publish(broker, 60)
    buckets = {str(number): int(keyed(f"k{number}")["outboxkit-bucket"]) for number in range(60)}
    shards = [await received(broker, name, three) for name in three.names]
    assert shards == [{id_ for id_, bucket in buckets.items() if bucket % 3 == shard} for shard in range(3)]
    assert all(len(ids) > 5 for ids in shards)
    assert await received(broker, broker.queue, three) == set()


@pytest.mark.parametrize("headers", [None, {"outboxkit-key": "k"}, {"outboxkit-bucket": "12"}, {"outboxkit-bucket": 2}])
async def test_messages_without_a_bucket_come_to_the_first_shard(
    broker: PlainClient, headers: dict[str, object] | None
):
    three = Shards(broker.queue, 3)
    await move_of(broker).bind(three)
    broker.publish(b"{}", topic="T", message_id="1", type="T", headers=headers)
    assert await received(broker, three.names[0], three) == {"1"}


async def test_a_move_leaves_what_has_arrived_where_it_is_and_sends_the_rest_to_the_new_shards(broker: PlainClient):
    one, three = Shards(broker.queue, 1), Shards(broker.queue, 3)
    await move_of(broker).bind(one)
    publish(broker, 10, "old-")
    assert await moved(broker, one, three, 1) == (broker.queue,)
    publish(broker, 10, "new-")
    assert await received(broker, broker.queue, three, move=1) == {f"old-{number}" for number in range(10)}
    assert await moved(broker, three, one, 2) == three.names
    publish(broker, 10, "newest-")
    assert await received(broker, broker.queue, one) == {f"newest-{number}" for number in range(10)}
    split = [await received(broker, name, one, move=2) for name in three.names]
    assert set().union(*split) == {f"new-{number}" for number in range(10)}


async def test_an_old_shard_is_not_drained_while_another_consumer_holds_messages_of_it(broker: PlainClient):
    """The broker counts one consumer of a queue with a single active one, and no message that is unacked."""
    one, two = Shards(broker.queue, 1), Shards(broker.queue, 2)
    await move_of(broker).bind(one)
    first, second = (ordered(broker, broker.queue, shards=two) for _ in range(2))
    await first.connect()
    publish(broker, 3)
    held = [await first.receive() for _ in range(3)]
    await moved(broker, one, two, 1)
    await second.connect()
    assert await second.receive(wait=False) is None
    assert first.keys_left(1) is second.keys_left(1) is None
    await first.close()
    ids = []
    while (delivery := await second.receive(wait=False)) is not None:
        ids.append(getattr(delivery.message, "id", ""))
        await delivery.ack()
    assert ids == [getattr(each.message, "id", "") for each in held if each is not None]
    assert second.keys_left(1) == ()
    await second.close()


async def test_a_consumer_that_missed_changes_waits_in_front_of_what_came_after_them(broker: PlainClient):
    """It cannot know which keys of a queue that is a new shard again wait for old shards of meanwhile."""
    two, three = Shards(broker.queue, 2), Shards(broker.queue, 3)
    await moved(broker, two, three, 1)
    await moved(broker, three, two, 2)
    for name in three.names:
        await received(broker, name, two, move=2)
    late = ordered(broker, three.names[0], shards=three)
    late.follow(1, is_settled=True)
    await late.connect()
    await moved(broker, two, three, 3)
    publish(broker, 20)
    assert await late.receive(wait=False) is None
    late.follow(2, is_settled=True)
    assert await late.receive(wait=False) is None
    late.follow(3, is_settled=True)
    delivery = await late.receive(wait=False)
    assert delivery is not None
    await late.close()


async def test_a_process_that_does_not_know_of_a_change_waits_after_one_that_does(broker: PlainClient):
    """It may get the queue from that one while the change goes on, and does not know which keys wait for old shards."""
    one, two = Shards(broker.queue, 1), Shards(broker.queue, 2)
    await moved(broker, one, two, 1)
    publish(broker, 20)
    for move, is_settled, is_there in ((1, False, True), (0, True, False), (1, True, True), (0, True, True)):
        subscriber = ordered(broker, two.names[0], shards=two)
        subscriber.follow(move, is_settled=is_settled)
        await subscriber.connect()
        assert (await subscriber.receive(wait=False) is not None) == is_there
        subscriber.follow(move, is_settled=is_settled)
        await subscriber.close()


async def test_a_marker_of_a_change_that_the_database_does_not_know_stops_no_shard(broker: PlainClient):
    """Any client may publish one. A change is written before its marker is sent: the next agreement would know it."""
    two = Shards(broker.queue, 2)
    await move_of(broker).bind(two)
    broker.publish(b"", queue=two.names[0], message_id=f"{broker.queue}:99", type="outboxkit.moved")
    publish(broker, 20)
    subscriber = ordered(broker, two.names[0], shards=two)
    await subscriber.connect()
    subscriber.follow(1, is_settled=True)
    assert await subscriber.receive(wait=False) is None
    subscriber.follow(1, is_settled=True)
    assert await subscriber.receive(wait=False) is None
    with capture_logs() as said:
        subscriber.follow(1, is_settled=True)
    assert [(line["move"], line["queue"]) for line in said] == [(99, two.names[0])]
    assert await subscriber.receive(wait=False) is not None
    await subscriber.close()


async def test_a_plain_consumer_that_others_took_for_gone_keeps_the_marker_for_them(
    broker: PlainClient, postgresql_url: str, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    """It could not reach the database while they split the queue, and is still the active consumer there."""
    monkeypatch.setattr(membership, "SEEN_SECONDS", 0.1)
    two = Shards(broker.queue, 2)
    async with behind_proxy(postgresql_url) as (proxy, url):
        engine = process.engine(url, name="test")
        subscriber = ordered(broker, broker.queue)
        plain = Consumer(engine, subscriber, [], queue=broker.queue, concurrency=Concurrency(ordered=True))
        with capture_logs() as logs:
            running = asyncio.create_task(plain.run(asyncio.Event()))
            await eventually_async(lambda: asyncio.sleep(0, "consumer connected" in [log["event"] for log in logs]))
        proxy.refuse()
        async with async_pg_engine.begin() as connection:
            await connection.execute(update(sharding).values(shards=2, move=1))
        await moved(broker, Shards(broker.queue, 1), two, 1)
        await eventually_async(lambda: asyncio.sleep(0, subscriber.keys_left(1) == ()), seconds=20)
        proxy.accept()
        with pytest.raises(ConfigurationError, match="start with --shards 2"):
            await asyncio.wait_for(running, timeout=60)
        assert await received(broker, broker.queue, two, move=1) == set(), "the marker was there"
        await engine.dispose()


async def test_a_database_that_answers_ends_no_outage_of_the_broker(
    broker: PlainClient, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    """A consumer of a queue that is not split says in the database that it is there, before it connects again."""
    tries, stop = list[str](), asyncio.Event()
    async with behind_proxy(broker.url) as (proxy, url):
        subscriber = ordered(broker, broker.queue, url=url)
        connect = subscriber.connect

        async def counted() -> None:
            tries.append("")
            await connect()

        monkeypatch.setattr(subscriber, "connect", counted)
        plain = Consumer(async_pg_engine, subscriber, [], queue=broker.queue, concurrency=Concurrency(ordered=True))
        with capture_logs() as logs:
            running = asyncio.create_task(plain.run(stop))
            await eventually_async(lambda: asyncio.sleep(0, "consumer connected" in [log["event"] for log in logs]))
            tries.clear()
            proxy.refuse()
            await eventually_async(lambda: asyncio.sleep(0, len(tries) > 1))
            assert [log["event"] for log in logs if log["event"].startswith("broker is")] == ["broker is away, waiting"]
            stop.set()
            await running


async def test_a_shard_that_is_deleted_again_and_again_is_bound_each_time(
    broker: PlainClient, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards, "SEEN_SECONDS", 0.1)
    first = Shards(broker.queue, 2).names[0]
    places = {"database_url": postgresql_url, "queue": broker.queue, "exchange": broker.exchange}

    def is_bound() -> bool:
        try:
            broker.publish(b"{}", topic="OrderConfirmed", message_id="m", type="OrderConfirmed")
        except pika.exceptions.UnroutableError:
            return False
        return True

    stop = asyncio.Event()
    async with compose.consumer(settings_of(broker, **places), inbox.handlers_in([shop])) as consumer:
        running = asyncio.create_task(consumer.run(stop))
        await eventually_async(lambda: consumes(broker, first))
        for _ in range(2):
            broker.delete_queue(first)
            await eventually_async(lambda: consumes(broker, first))
            await eventually_async(lambda: asyncio.to_thread(is_bound))
        stop.set()
        await running


async def consumes(broker: PlainClient, queue: str) -> bool:
    return await asyncio.to_thread(lambda: broker.has_queue(queue) and broker.consumers(queue) > 0)


async def test_a_consumer_that_connects_again_binds_nothing(broker: PlainClient):
    one, two = Shards(broker.queue, 1), Shards(broker.queue, 2)
    await move_of(broker).bind(two)
    await moved(broker, two, one, 1)
    assert await received(broker, two.names[0], two) == set()
    publish(broker, 8)
    assert await received(broker, two.names[0], two) == await received(broker, two.names[1], two) == set()
    assert len(await received(broker, broker.queue, one)) == 8


async def test_another_exchange_with_the_name_is_refused_and_another_number_deletes_it(broker: PlainClient):
    one, two = Shards(broker.queue, 1), Shards(broker.queue, 2)
    broker.declare_exchange(name=two.exchange)
    with pytest.raises(ConfigurationError, match=r"inequivalent arg 'type'.* Start with another number of --shards"):
        await move_of(broker).prepare(one, two)
    await moved(broker, two, one, 1)
    await moved(broker, one, two, 2)
    publish(broker, 8)
    assert await received(broker, two.names[0], two) | await received(broker, two.names[1], two) == set(
        map(str, range(8))
    )


async def test_a_queue_of_another_kind_is_refused_and_nothing_is_left_behind(broker: PlainClient, postgresql_url: str):
    """Neither exchange nor queues at the broker, nor a change in the tables that others would have to finish."""
    queue = subscriber_of(broker, topics=["T"])
    await queue.connect()
    await queue.close()
    engine = process.engine(postgresql_url, name="test")
    move = move_of(broker)
    sharded = ShardedConsumer(
        *(engine, Shards(broker.queue, 2), lambda _: pytest.fail("nothing is consumed"), move),
        handlers=[],
        publish_timeout=timedelta(0),
    )
    with pytest.raises(ConfigurationError, match="with other arguments"):
        await sharded.run(asyncio.Event())
    async with engine.connect() as connection:
        assert (await connection.execute(select(sharding))).all() == []
        assert (await connection.execute(select(shard_member))).all() == []
    await engine.dispose()
    assert not broker.has_exchange(f"{broker.queue}.2")
    assert not any(map(broker.has_queue, Shards(broker.queue, 2).names))


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
