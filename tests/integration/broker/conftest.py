"""An HTTP destination and its publishers, and a subscriber of the broker's queue."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from outboxkit.brokers.http import HttpPublisher
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from tests.integration.broker.publishing import Make, subscriber_of
from tests.support.http_destination import Destination
from tests.support.plain_client import PlainClient


@pytest.fixture
async def destination() -> AsyncIterator[Destination]:
    async with Destination() as made:
        yield made


@pytest.fixture
async def make(destination: Destination) -> AsyncIterator[Make]:
    """Makes connected publishers, and closes them."""
    publishers: list[HttpPublisher] = []

    def connected(**more: Any) -> HttpPublisher:
        publishers.append(HttpPublisher(more.pop("url", destination.url), **more))
        return publishers[-1]

    yield connected
    for each in publishers:
        await each.close()


@pytest.fixture
async def subscriber(broker: PlainClient) -> AsyncIterator[RabbitSubscriber]:
    made = subscriber_of(broker)
    await made.connect()
    yield made
    await made.close()
