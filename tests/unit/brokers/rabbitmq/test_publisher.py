"""The publisher without a broker; what needs one is in the integration tests."""

from datetime import timedelta

import pytest

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
