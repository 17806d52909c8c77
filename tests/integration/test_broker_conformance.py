"""Every broker that comes with outboxkit passes the suite that comes with it."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from outboxkit import ids
from outboxkit.brokers import Publisher, Subscriber
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.brokers.rabbitmq import RabbitPublisher, RabbitSubscriber
from outboxkit.testing import conformance
from tests.servers import Server


class Memory:
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def publisher(self) -> Publisher:
        return MemoryPublisher(self.broker)

    def subscriber(self, queue: str, topics: Sequence[str], ladder: Sequence[timedelta]) -> Subscriber:
        return MemorySubscriber(self.broker, queue, topics, ladder)


class Rabbit:
    def __init__(self, url: str) -> None:
        self.url = url
        self.exchange = f"conformance-{ids.new()}"

    def publisher(self) -> Publisher:
        return RabbitPublisher(self.url, exchange=self.exchange)

    def subscriber(self, queue: str, topics: Sequence[str], ladder: Sequence[timedelta]) -> Subscriber:
        return RabbitSubscriber(self.url, queue, exchange=self.exchange, topics=topics, ladder=ladder)


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_memory_broker_conforms(case: conformance.Case) -> None:
    await case(Memory())


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_rabbitmq_conforms(case: conformance.Case, rabbitmq: Server) -> None:
    await case(Rabbit(rabbitmq.url))
