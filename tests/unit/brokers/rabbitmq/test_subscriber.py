"""The subscriber without a broker; what needs one is in the integration tests."""

from types import SimpleNamespace
from typing import Any

import pytest
from pamqp import commands

from outboxkit import BrokerUnavailable
from outboxkit.brokers.rabbitmq import subscriber as subscriber_module
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.incoming import DeliveryChannel, RawDelivery
from outboxkit.brokers.rabbitmq.shards import MOVED, move_id
from outboxkit.brokers.rabbitmq.subscriber import RabbitSubscriber
from outboxkit.codec.headers import KEY, DeliveryHeaders
from outboxkit.runtime.sources import Shards


@pytest.fixture
def subscriber() -> RabbitSubscriber:
    return RabbitSubscriber("http://shop:hunter2@mq/", "billing", exchange="outboxkit", topics=["OrderConfirmed"])


async def test_without_a_connection_nothing_can_be_asked(subscriber: RabbitSubscriber):
    for ask in (
        subscriber.receive,
        lambda: subscriber.receive(wait=False),
        subscriber.stop_receiving,
    ):
        with pytest.raises(BrokerUnavailable, match="connection to the broker"):
            await ask()


def test_before_it_is_connected_that_is_its_trouble(subscriber: RabbitSubscriber):
    assert subscriber.trouble == "not connected"


async def test_closing_before_connecting_is_no_error(subscriber: RabbitSubscriber):
    await subscriber.close()
    await subscriber.close()


class Scripted(RabbitSubscriber):
    """Is told how many messages and consumers its queues have, in turn."""

    depths: list[tuple[int, int]]

    async def _declare_passively(self, queue: str) -> commands.Queue.DeclareOk:
        messages, consumers = self.depths.pop(0)
        return commands.Queue.DeclareOk(queue, messages, consumers)


class Pushed:
    """A channel on which these are found, one each time that somebody looks."""

    unacked, is_full, is_held, has_next = 0, False, False, False

    def __init__(self, *found: object) -> None:
        self.found = list(found)

    def next_nowait(self) -> object:
        return self.found.pop(0)


EMPTY, LEADERLESS, ONE = (0, 1), (0, 0), (1, 1)


@pytest.mark.parametrize(
    ("found", "depths", "expected"),
    [
        (["a"], [], "a"),
        ([None, None, None], [EMPTY] * 4, None),
        ([None, "on its way"], [EMPTY] * 2, "on its way"),
        ([None, None, "on its way"], [EMPTY] * 4, "on its way"),
        ([None, None, "on its way"], [EMPTY, EMPTY, ONE], "on its way"),
        ([None, None, None, "late"], [EMPTY, EMPTY, ONE, EMPTY, EMPTY], "late"),
        ([None, None, None, None], [ONE, EMPTY, EMPTY, EMPTY, EMPTY], None),
        ([None, None, None, None], [EMPTY, LEADERLESS, EMPTY, EMPTY, EMPTY, EMPTY], None),
    ],
)
async def test_a_queue_is_empty_when_it_was_found_so_twice(
    found: list[object], depths: list[tuple[int, int]], expected: object, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber_module, "POLL_SECONDS", 0)
    for ordered in (True, False):
        scripted = Scripted("amqp://mq/", "billing", exchange="outboxkit", topics=[], ordered=ordered)
        scripted._sources = ("billing", "billing.dead")
        scripted.depths = depths[:]
        assert await scripted._next_or_none(Pushed(*found)) == expected  # type: ignore[comparison-overlap,arg-type]
        assert scripted.depths == []


async def test_messages_that_wait_and_are_never_delivered_end_the_channel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subscriber_module, "STALL_SECONDS", -1)
    scripted = Scripted("amqp://mq/", "billing", exchange=None, topics=[])
    scripted._sources, scripted.depths = ("billing",), [ONE]
    with pytest.raises(BrokerUnavailable, match="messages wait in the queue, and the broker delivers none"):
        await scripted._next_or_none(DeliveryChannel(timeout=1, max_unacked_bytes=1000))


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_copy_that_is_not_confirmed_ends_its_channel_unless_that_has_stopped(
    subscriber: RabbitSubscriber, is_stopped: bool
):
    async def put(*_: Any, **__: Any) -> None:
        raise BrokerUnavailable("no confirm")

    subscriber._retry_publisher.put = put  # type: ignore[method-assign]
    channel = DeliveryChannel(timeout=1, max_unacked_bytes=1000)
    if is_stopped:
        channel.stopped.set()
    delivery: Any = SimpleNamespace(raw=SimpleNamespace(consumer="billing"), channel=channel, topic="t")
    with pytest.raises(BrokerUnavailable, match="no confirm"):
        await subscriber.copy(delivery, DeliveryHeaders(attempt=2), subscriber.delays[0])
    assert channel.lost == (None if is_stopped else "no confirm"), "its other deliveries can still be acked"
    assert await subscriber.waiting_retries() == 0


@pytest.mark.parametrize(
    ("keys", "left"), [(["b", "a", "b"], ("a", "b")), (["b", None], None), ([None], None), ([], ())]
)
async def test_what_is_left_in_an_old_shard_is_known_if_each_message_in_front_of_the_marker_has_a_key(
    keys: list[str | None], left: tuple[str, ...] | None
):
    """One without a key would be given back to a queue that nobody reads any more."""
    old: Any = RabbitSubscriber("amqp://mq/", "q.2.0", exchange="e", topics=[], ordered=True, shards=Shards("q", 2))
    old._channel = channel = DeliveryChannel(timeout=1, max_unacked_bytes=1000, ordered=True)
    sent = [Properties(headers=None if key is None else {KEY: key}) for key in keys]
    for tag, properties in enumerate([*sent, Properties(message_id=move_id("q", 1), message_type=MOVED)], 1):
        assert old.keys_left(1) is None, "before the marker comes"
        raw = RawDelivery(tag, redelivered=False, consumer="q.2.0", routing_key="T", properties=properties)
        channel.delivered(raw)
        assert old._is_message(raw, channel) == (tag <= len(keys))
    assert old.keys_left(1) == left
