"""The publisher without a broker; what needs one is in the integration tests."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher
from tests.unit.shop import message


@pytest.fixture
def publisher() -> RabbitPublisher:
    return RabbitPublisher("http://shop:hunter2@mq/", exchange="outboxkit", timeout=timedelta(seconds=1))


async def test_without_a_connection_nothing_is_published(publisher: RabbitPublisher):
    with pytest.raises(BrokerUnavailable, match="the connection to the broker is closed"):
        await publisher.publish([message()])


async def test_a_wrong_url_is_noticed_when_connecting(publisher: RabbitPublisher):
    with pytest.raises(ConfigurationError, match="OUTBOXKIT_BROKER_URL") as raised:
        await publisher.connect()
    assert "hunter2" not in str(raised.value)


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
