"""Names and arguments of the queues; what needs a broker is in the integration tests."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq.queues import quorum, retry_queue
from outboxkit.brokers.rabbitmq.subscriber import RabbitSubscriber
from outboxkit.settings import parse_duration

STEPS = st.integers(1, 7 * 86_400_000).map(lambda number: timedelta(milliseconds=number))


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (timedelta(milliseconds=1), "billing.retry.1ms"),
        (timedelta(milliseconds=1500), "billing.retry.1500ms"),
        (timedelta(seconds=10), "billing.retry.10s"),
        (timedelta(seconds=90), "billing.retry.90s"),
        (timedelta(minutes=10), "billing.retry.10m"),
        (timedelta(hours=2), "billing.retry.2h"),
        (timedelta(hours=36), "billing.retry.36h"),
        (timedelta(days=7), "billing.retry.7d"),
        (timedelta(0), "billing.retry.0ms"),
    ],
)
def test_a_retry_queue_is_named_after_its_step(step: timedelta, name: str):
    assert retry_queue("billing", step) == name


@given(STEPS)
def test_the_name_reads_as_the_duration_that_it_is(step: timedelta):
    assert parse_duration(retry_queue("q", step).removeprefix("q.retry.")) == step


@given(STEPS, STEPS)
def test_two_steps_have_two_queues(one: timedelta, other: timedelta):
    assert (retry_queue("q", one) == retry_queue("q", other)) is (one == other)


def test_what_a_quorum_queue_drops_is_handed_on_safely():
    assert quorum("billing.dead", **{"x-message-ttl": 1000}) == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "billing.dead",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": 1000,
    }


@pytest.fixture
def subscriber() -> RabbitSubscriber:
    return RabbitSubscriber("http://shop:hunter2@mq/", "billing", exchange="outboxkit", topics=["OrderConfirmed"])


async def test_without_a_connection_nothing_can_be_asked(subscriber: RabbitSubscriber):
    for ask in (subscriber.receive, lambda: subscriber.receive(wait=False), subscriber.postponed):
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
