"""The relay against PostgreSQL and RabbitMQ: what leaves the outbox, what stays, and how many statements it takes."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.brokers import Verdict
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.retry import Backoff
from outboxkit.runtime import process
from tests.integration.relay.recording import NOW, add, behind_proxy, rows, turn
from tests.support.plain_client import PlainClient

LATER = NOW + timedelta(hours=1)


@pytest.fixture
async def publisher(broker: PlainClient) -> AsyncIterator[RabbitPublisher]:
    made = RabbitPublisher(broker.url, exchange=broker.exchange, timeout=timedelta(seconds=5))
    await made.connect()
    yield made
    await made.close()


async def test_several_relays_publish_disjoint_rows(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    broker.bind("Ordered")
    ids = add(pg_engine, *range(2000))
    publishers = [RabbitPublisher(broker.url, exchange=broker.exchange) for _ in range(4)]
    relays = [Relay(async_pg_engine, publisher, batch_size=50) for publisher in publishers]
    done = await asyncio.gather(*(relay.drain(asyncio.Event()) for relay in relays))
    assert sum(drained.published for drained in done) == 2000
    assert all(drained.is_complete for drained in done)
    assert sorted(received.properties.message_id for received in broker.take_all()) == sorted(ids)
    assert rows(pg_engine) == []


async def test_an_unroutable_message_stays_with_its_reason_until_there_is_a_queue(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    policy = RelayPolicy(backoffs={Verdict.UNROUTABLE: Backoff(jitter=lambda: 1)})
    add(pg_engine, 1)
    for attempt, delay in ((1, 1), (2, 2), (3, 4)):
        await turn(async_pg_engine, publisher, as_of=LATER, policy=policy)
        (row,) = rows(pg_engine)
        assert (row.attempts, row.due_at, row.held) == (attempt, NOW + timedelta(seconds=delay), True)
        assert row.last_error.startswith("unroutable: NO_ROUTE")
    assert await turn(async_pg_engine, publisher) == []  # it is not due yet
    broker.bind("Ordered")
    (settlement,) = await turn(async_pg_engine, publisher, as_of=LATER)
    assert len(settlement.published) == 1
    assert rows(pg_engine) == []


async def test_two_rows_with_one_id_are_told_apart(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    broker.bind("Ordered")
    add(pg_engine, 1, message_id="same", topic="nowhere")
    add(pg_engine, 2, message_id="same")
    (settled,) = await turn(async_pg_engine, publisher)
    assert (len(settled.published), len(settled.failed)) == (1, 1)
    assert [row.payload for row in rows(pg_engine)] == [b'{"number":1}']
    assert [received.body for received in broker.take_all()] == [b'{"number":2}']


@pytest.mark.parametrize("routable", [True, False], ids=["published", "unroutable"])
async def test_a_batch_takes_the_same_statements_and_round_trips_whatever_its_size(
    pg_engine: Engine, postgresql_url: str, broker: PlainClient, publisher: RabbitPublisher, routable: bool
):
    if routable:
        broker.bind("Ordered")
    found = []
    async with behind_proxy(postgresql_url) as (proxy, url):
        engine = process.engine(url, name="counted")
        statements: list[str] = []
        sqlalchemy_event.listen(
            engine.sync_engine, "before_cursor_execute", lambda _, __, statement, *___: statements.append(statement[:6])
        )
        for size in (1, 90):
            add(pg_engine, *range(size))
            await turn(engine, publisher)  # the first one also opens the connections
            add(pg_engine, *range(size))
            statements.clear()
            before = proxy.turns
            (settled,) = await turn(engine, publisher)
            assert len(settled.published) + len(settled.failed) == size
            found.append((list(statements), proxy.turns - before))
        await engine.dispose()
    (small, small_turns), (large, large_turns) = found
    assert small == large == ([] if routable else ["UPDATE"]), "the driver itself sends the DELETE, with its COMMIT"
    assert large_turns <= small_turns + 10
