"""The publisher without a broker; what needs one is in the integration tests."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable
from outboxkit.brokers.rabbitmq import publisher as publisher_module
from outboxkit.brokers.rabbitmq.confirm_channel import ConfirmChannel
from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher
from tests.unit.brokers.rabbitmq.written import Wire
from tests.unit.shop import message


@pytest.fixture
def publisher() -> RabbitPublisher:
    return RabbitPublisher("http://shop:hunter2@mq/", exchange="outboxkit", timeout=timedelta(seconds=1))


async def test_without_a_connection_nothing_is_published(publisher: RabbitPublisher):
    with pytest.raises(BrokerUnavailable, match="the connection to the broker is closed"):
        await publisher.publish([message()])


def test_relays_of_one_cluster_name_it_alike():
    """The URLs are shuffled, so that not all relays begin with one node."""
    url = "amqp://shop:hunter2@a/,amqp://shop:hunter2@b/"
    relays = [RabbitPublisher(url, exchange="outboxkit", shuffle=shuffle) for shuffle in (list.sort, list.reverse)]
    assert relays[0].address == relays[1].address == "amqp://a/, amqp://b/"


def test_routes_that_are_held_are_told_once_a_minute():
    now = 1000.0
    publisher = RabbitPublisher("amqp://mq/", exchange="outboxkit", clock=lambda: now)
    with capture_logs() as said:
        for _ in range(4):
            for route in "ab":
                publisher._serialized.nacked.record_nack(route, f"full: {route}", retry_on_new_connection=False)
            publisher._warn_of_held_routes()
            now += 25
    assert [(line["reason"], line["routes"]) for line in said] == [("full: a", 2)] * 2


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_nack_before_the_time_limit_counts_as_any_other(is_blocked: bool):
    publisher = RabbitPublisher("amqp://mq/", exchange="outboxkit", timeout=timedelta(seconds=0.1))
    wire = Wire()
    publisher._channel = opened = ConfirmChannel(wire, exchange="outboxkit", app_id="shop")  # type: ignore[arg-type]
    for _ in range(3):
        publisher._serialized.nacked.record_nack("held", "full", retry_on_new_connection=False)
    publishing = asyncio.create_task(publisher.publish([message(id=each, topic=each) for each in ("held", *"abc")]))
    assert await wire.next_ids() == ["a", "b", "c"]
    if is_blocked:
        opened.tracker.blocked("low on disk")
    opened.tracker.nack(1, multiple=False)
    opened.tracker.ack(3, multiple=False)
    receipts = await publishing
    assert [each.verdict for each in receipts] == ["postponed", "unknown", "unknown", "confirmed"]
    assert receipts[1].reason == "the broker nacked all for routing key 'a' on this connection"
    assert publisher._channel is (opened if is_blocked else None), "only a block ends by itself"
    assert "a" in publisher._serialized.nacked
    assert publisher._serialized.among({"b"}) == {"b"}, "after a nack all routes are serialized"


async def test_a_channel_that_was_closed_for_an_earlier_batch_blames_no_message_of_this_one():
    publisher = RabbitPublisher("amqp://mq/", exchange="outboxkit")
    wire = Wire()
    publisher._channel = opened = ConfirmChannel(wire, exchange="outboxkit", app_id="shop")  # type: ignore[arg-type]
    opened.tracker.sent(["early"], [0])  # and never answered: the time limit ended its batch
    publishing = asyncio.create_task(publisher.publish([message(id="next")]))
    assert await wire.next_ids() == ["next"]
    opened.tracker.closed(406, "PRECONDITION_FAILED", connection_too=False)
    assert [each.verdict for each in await publishing] == ["unknown"]


async def test_a_new_connection_has_confirmed_no_route(monkeypatch: pytest.MonkeyPatch):
    async def connected(*_: object, **__: object) -> None: ...

    async def opened(*_: object, **__: object) -> ConfirmChannel:
        return ConfirmChannel(Wire(), exchange="outboxkit", app_id="shop")  # type: ignore[arg-type]

    monkeypatch.setattr(publisher_module.connection, "connect", connected)
    monkeypatch.setattr(publisher_module, "open_confirm_channel", opened)
    publisher = RabbitPublisher("amqp://mq/", exchange="outboxkit")
    publisher._serialized.record_confirm("a")
    assert publisher._serialized.among({"a"}) == set()
    await publisher.connect()
    assert publisher._serialized.among({"a"}) == {"a"}, "its queue may be gone"
