"""A relay on a cluster of three RabbitMQ nodes: a lost node, a frozen one, a lost majority. No message is blamed."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import tables
from outboxkit.brokers.rabbitmq import RabbitPublisher
from tests.integration.relay.recording import add, count, relay, rows, running
from tests.servers.cluster import Cluster, provide_cluster
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

pytestmark = pytest.mark.night
WARNINGS_A_MINUTE = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = provide_cluster()
    made.start()
    yield made
    made.close()


def first_node_first(urls: list[str]) -> None:
    """Instead of a shuffle."""


class Witness:
    """A relay whose node leads the queue, and what becomes of the messages that are committed meanwhile."""

    def __init__(self, cluster: Cluster, engine: Engine, broker: PlainClient) -> None:
        self.cluster, self.engine, self.broker = cluster, engine, broker
        self.sent: list[str] = []
        self.log: list[MutableMapping[str, Any]] = []

    async def commit(self, messages: int, *, every: float = 0.05) -> None:
        """Messages of five keys, one after another; nobody may be blamed meanwhile."""
        for _ in range(messages):
            key = f"key-{len(self.sent) % 5}"
            self.sent += await asyncio.to_thread(add, self.engine, len(self.sent), key=key)
            self.assert_nobody_is_blamed()
            await asyncio.sleep(every)

    def assert_nobody_is_blamed(self) -> None:
        with self.engine.connect() as connection:
            assert connection.execute(select(func.max(tables.outbox.c.attempts))).scalar() in (None, 0)
        assert not rows(self.engine, tables.dead_letter)
        assert not [entry for entry in self.log if entry["event"] == "message not published"]

    async def all_left(self, within: float) -> None:
        await eventually_async(lambda: asyncio.to_thread(count, self.engine), lambda left: left == 0, seconds=within)
        self.assert_nobody_is_blamed()

    def assert_all_arrived_in_order(self, node: int) -> None:
        """Each at least once, for the first time in the order in which they were committed."""
        client = PlainClient(self.cluster.urls[node])
        arrived = dict.fromkeys(received.properties.message_id for received in client.take_all(self.broker.queue))
        client.disconnect()
        for first in range(5):
            assert [id_ for id_ in self.sent[first::5] if id_ in arrived] == self.sent[first::5]
            assert [id_ for id_ in arrived if id_ in set(self.sent[first::5])] == self.sent[first::5]
        warnings = [entry for entry in self.log if entry["log_level"] == "warning"]
        assert len(warnings) < WARNINGS_A_MINUTE, warnings


@asynccontextmanager
async def relaying(
    cluster: Cluster, pg_engine: Engine, async_pg_engine: AsyncEngine, *, leader: int = 0, **query: str
) -> AsyncIterator[Witness]:
    """A relay that is connected to the first node, and three messages that it has published to a queue of `leader`."""
    broker = PlainClient(cluster.urls[leader])
    broker.bind("Ordered")
    broker.disconnect()
    url = ",".join(f"{each}?{name}={value}" for each in cluster.urls for name, value in query.items()) or cluster.url
    publisher = RabbitPublisher(url, exchange=broker.exchange, timeout=timedelta(seconds=5), shuffle=first_node_first)
    witness = Witness(cluster, pg_engine, broker)
    with capture_logs() as witness.log:
        async with running(relay(async_pg_engine, publisher)):
            await witness.commit(3)
            await witness.all_left(within=20)
            yield witness


async def test_the_connected_node_is_killed_and_stays_down(
    cluster: Cluster, pg_engine: Engine, async_pg_engine: AsyncEngine
):
    async with relaying(cluster, pg_engine, async_pg_engine) as witness:
        cluster.kill(0)
        await witness.commit(20)
        await witness.all_left(within=15)
        await witness.commit(5)
        await witness.all_left(within=5)
        witness.assert_all_arrived_in_order(1)


async def test_nodes_are_killed_in_turn_and_started_again(
    cluster: Cluster, pg_engine: Engine, async_pg_engine: AsyncEngine
):
    await asyncio.to_thread(cluster.start)
    async with relaying(cluster, pg_engine, async_pg_engine) as witness:
        for node in (0, 1, 2, 0):
            cluster.kill(node)
            await witness.commit(60)
            await witness.all_left(within=30)
            starting = asyncio.create_task(asyncio.to_thread(cluster.start, node))
            while not starting.done():
                await witness.commit(1)
            await starting
        await witness.all_left(within=30)
        witness.assert_all_arrived_in_order(1)


async def test_the_connected_node_freezes_and_is_left_when_its_heartbeat_says_so(
    cluster: Cluster, pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """A queue whose own leader is frozen is another matter: RabbitMQ itself waits for it, a minute by default."""
    await asyncio.to_thread(cluster.start)
    async with relaying(cluster, pg_engine, async_pg_engine, leader=1, heartbeat="1") as witness:
        cluster.pause(0)
        try:
            began = time.monotonic()
            await witness.commit(20)
            await witness.all_left(within=30)
            print(f"the frozen node was left after {time.monotonic() - began:.1f} s")
        finally:
            cluster.resume(0)
        await witness.commit(5)
        await witness.all_left(within=30)
        witness.assert_all_arrived_in_order(1)


async def test_the_majority_is_lost_for_a_while(cluster: Cluster, pg_engine: Engine, async_pg_engine: AsyncEngine):
    await asyncio.to_thread(cluster.start)
    async with relaying(cluster, pg_engine, async_pg_engine) as witness:
        cluster.kill(1)
        cluster.kill(2)
        await witness.commit(300, every=0.1)
        assert count(pg_engine) > 250
        await asyncio.to_thread(cluster.start)
        await witness.all_left(within=60)
        witness.assert_all_arrived_in_order(0)
