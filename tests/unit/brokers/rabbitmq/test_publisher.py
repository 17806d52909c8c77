"""The publisher's plan for a batch; what needs a broker is in the integration tests."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher, _waves
from tests.unit.shop import message

IDS = st.lists(st.sampled_from("abcd"), max_size=12)


@given(IDS)
def test_every_message_is_in_exactly_one_wave(ids: list[str]):
    waves = list(_waves([message(id=id_) for id_ in ids]))
    assert sorted(index for wave in waves for index in wave) == list(range(len(ids)))


@given(IDS)
def test_no_wave_has_an_id_twice_and_the_waves_keep_the_order_of_an_id(ids: list[str]):
    waves = list(_waves([message(id=id_) for id_ in ids]))
    for wave in waves:
        assert len({ids[index] for index in wave}) == len(wave)
        assert wave == sorted(wave)
    for id_ in set(ids):
        order = [index for wave in waves for index in wave if ids[index] == id_]
        assert order == sorted(order)


@given(IDS)
def test_there_are_no_more_waves_than_the_most_frequent_id_needs(ids: list[str]):
    assert len(list(_waves([message(id=id_) for id_ in ids]))) == max(map(ids.count, ids), default=0)


def test_different_ids_are_one_wave():
    assert list(_waves([message(id=id_) for id_ in "abc"])) == [[0, 1, 2]]
    assert list(_waves([message(id=id_) for id_ in "aba"])) == [[0, 1], [2]]


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


async def test_closing_before_connecting_is_no_error(publisher: RabbitPublisher):
    await publisher.close()
    await publisher.close()


def test_the_password_is_not_shown(publisher: RabbitPublisher):
    assert "hunter2" not in repr(publisher)
