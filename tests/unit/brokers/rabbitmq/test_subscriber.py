"""The subscriber without a broker; what needs one is in the integration tests."""

import pytest

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq.subscriber import RabbitSubscriber


@pytest.fixture
def subscriber() -> RabbitSubscriber:
    return RabbitSubscriber("http://shop:hunter2@mq/", "billing", exchange="outboxkit", topics=["OrderConfirmed"])


async def test_without_a_connection_nothing_can_be_asked(subscriber: RabbitSubscriber):
    for ask in (subscriber.receive, lambda: subscriber.receive(wait=False), subscriber.postponed, subscriber.cease):
        with pytest.raises(BrokerUnavailable, match="connection to the broker"):
            await ask()


async def test_a_wrong_url_is_noticed_when_connecting_and_every_time(subscriber: RabbitSubscriber):
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="OUTBOXKIT_BROKER_URL"):
            await subscriber.connect()


async def test_closing_before_connecting_is_no_error(subscriber: RabbitSubscriber):
    await subscriber.close()
    await subscriber.close()


def test_the_password_is_not_shown(subscriber: RabbitSubscriber):
    assert "hunter2" not in repr(subscriber)
