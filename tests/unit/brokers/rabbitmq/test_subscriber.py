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


class Scripted(RabbitSubscriber):
    """Is told how many messages are in its two queues, in turn."""

    depths: list[int]

    async def _depth(self, queue: str) -> int:
        return self.depths.pop(0)


class Pushed:
    """An intake on which these are found, one each time that somebody looks."""

    unsettled = 0

    def __init__(self, *found: object) -> None:
        self.found = list(found)

    def next_present(self) -> object:
        return self.found.pop(0)


@pytest.mark.parametrize(
    ("found", "depths", "expected"),
    [
        (["a"], [], "a"),
        ([None, None, None], [0, 0, 0, 0], None),
        ([None, "on its way"], [0, 0], "on its way"),
        ([None, None, "on its way"], [0, 0, 1, 0], "on its way"),
        ([None, None, None, "late"], [0, 0, 1, 0, 0, 0], "late"),
        ([None, None, None, None], [3, 0, 0, 0, 0, 0], None),
    ],
)
async def test_an_ordered_queue_is_empty_when_it_was_found_so_twice(
    found: list[object], depths: list[int], expected: object
):
    ordered = Scripted("amqp://mq/", "billing", exchange="outboxkit", topics=[], ordered=True)
    ordered.depths = depths
    assert await ordered._next_in_order(Pushed(*found)) == expected  # type: ignore[comparison-overlap,arg-type]
    assert ordered.depths == []
