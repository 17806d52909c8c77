"""The relay against PostgreSQL and RabbitMQ: what leaves the outbox, what stays, and how many statements it takes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, make_url, select, text
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import BrokerUnavailable, Message, event, outbox, process, tables
from outboxkit.brokers import Receipt
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.outage import what_is_away
from outboxkit.relay import Relay
from outboxkit.retry import Backoff
from tests.plain_client import QUORUM, PlainClient
from tests.polling import eventually_async
from tests.tcp_proxy import TcpProxy

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@pytest.fixture
async def publisher(broker: PlainClient) -> AsyncIterator[RabbitPublisher]:
    made = RabbitPublisher(broker.url, exchange=broker.exchange, timeout=timedelta(seconds=5))
    await made.connect()
    yield made
    await made.close()


def add(engine: Engine, *numbers: int, **options: Any) -> list[str]:
    with Session(engine) as session, session.begin():
        return [message.id for message in outbox.add_all(session, [Ordered(n) for n in numbers], **options)]


def rows(engine: Engine) -> Sequence[Any]:
    with engine.connect() as connection:
        return connection.execute(select(tables.outbox).order_by(tables.outbox.c.position)).all()


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


async def test_rows_arrive_in_the_order_of_their_positions(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    broker.bind("Ordered")
    ids = add(pg_engine, *range(300))
    await Relay(async_pg_engine, publisher, batch_size=100).drain(asyncio.Event())
    assert [received.properties.message_id for received in broker.take_all()] == ids


async def test_a_row_that_somebody_holds_is_passed_over(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    broker.bind("Ordered")
    add(pg_engine, 1, 2)
    with pg_engine.begin() as connection:
        connection.execute(select(tables.outbox).limit(1).with_for_update())
        settled = await Relay(async_pg_engine, publisher).publish_batch(NOW)
        assert len(settled.published) == 1
    assert [row.payload for row in rows(pg_engine)] == [b'{"number":1}']


async def test_an_unroutable_message_stays_with_its_reason_until_there_is_a_queue(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    relay = Relay(async_pg_engine, publisher, clock=lambda: NOW, backoff=Backoff(jitter=lambda: 1))
    add(pg_engine, 1)
    for attempt, delay in ((1, 1), (2, 2), (3, 4)):
        await relay.publish_batch(LATER)
        (row,) = rows(pg_engine)
        assert (row.attempts, row.due_at) == (attempt, NOW + timedelta(seconds=delay))
        assert row.last_error.startswith("unroutable: NO_ROUTE")
    assert not (await relay.publish_batch(NOW)).failed  # it is not due yet
    broker.bind("Ordered")
    assert len((await relay.publish_batch(LATER)).published) == 1
    assert rows(pg_engine) == []


async def test_a_nacked_message_stays(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    broker.bind("Ordered", arguments=QUORUM | {"x-max-length": 1, "x-overflow": "reject-publish"})
    add(pg_engine, *range(20))
    relay = Relay(async_pg_engine, publisher, batch_size=1)
    done = await relay.drain(asyncio.Event())
    left = rows(pg_engine)
    assert left
    assert {row.attempts for row in left} == {1}
    assert all(row.last_error.startswith("rejected: nacked") for row in left)
    assert done.published + len(left) == 20
    assert broker.depth() == done.published


async def test_two_rows_with_one_id_are_told_apart(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    broker.bind("Ordered")
    add(pg_engine, 1, message_id="same", topic="nowhere")
    add(pg_engine, 2, message_id="same")
    settled = await Relay(async_pg_engine, publisher).publish_batch(NOW)
    assert (len(settled.published), len(settled.failed)) == (1, 1)
    assert [row.payload for row in rows(pg_engine)] == [b'{"number":1}']
    assert [received.body for received in broker.take_all()] == [b'{"number":2}']


async def test_a_broker_that_does_not_answer_counts_no_attempt(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    broker.bind("Ordered")
    add(pg_engine, 1, 2)
    async with behind_proxy(broker.url) as (proxy, url):
        publisher = RabbitPublisher(url, exchange=broker.exchange, timeout=timedelta(seconds=2))
        await publisher.connect()
        proxy.hold_server()
        with pytest.raises(BrokerUnavailable, match="did not answer in time"):
            await Relay(async_pg_engine, publisher).publish_batch(NOW)
        await publisher.close()
    assert [(row.attempts, row.last_error, row.due_at) for row in rows(pg_engine)] == [(0, None, None)] * 2
    assert broker.depth() == 2  # they had arrived: the inbox will see them twice


class FaultyPublisher:
    """A real publisher with something that happens after its confirms and before they are known."""

    def __init__(self, publisher: RabbitPublisher, happening: Any) -> None:
        self._publisher = publisher
        self._happening = happening
        self.connect, self.close = publisher.connect, publisher.close

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        receipts = await self._publisher.publish(batch)
        await self._happening()
        return receipts


async def test_a_database_that_goes_away_before_the_settle_keeps_the_rows(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, publisher: RabbitPublisher
):
    broker.bind("Ordered")
    ids = add(pg_engine, 1, 2)

    async def end_all_others() -> None:
        with pg_engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )

    with pytest.raises(DBAPIError) as raised:
        await Relay(async_pg_engine, FaultyPublisher(publisher, end_all_others)).publish_batch(NOW)
    assert what_is_away(raised.value) == "database"
    assert [row.attempts for row in rows(pg_engine)] == [0, 0]
    assert (await Relay(async_pg_engine, publisher).drain(asyncio.Event())).published == 2
    assert [received.properties.message_id for received in broker.take_all()] == ids * 2


async def test_the_database_takes_its_rows_back_from_a_relay_that_froze(
    pg_engine: Engine,
    postgresql_url: str,
    async_pg_engine: AsyncEngine,
    broker: PlainClient,
    publisher: RabbitPublisher,
):
    broker.bind("Ordered")
    add(pg_engine, 1)
    thaw = asyncio.Event()
    limited = process.engine(postgresql_url, name="frozen", idle_in_transaction=timedelta(milliseconds=300))
    freezing = asyncio.create_task(Relay(limited, FaultyPublisher(publisher, thaw.wait)).publish_batch(NOW))

    async def publish_elsewhere() -> int:
        return len((await Relay(async_pg_engine, publisher).publish_batch(NOW)).published)

    await eventually_async(lambda: asyncio.to_thread(broker.depth))
    assert await eventually_async(publish_elsewhere) == 1
    thaw.set()
    with pytest.raises(DBAPIError) as raised:
        await freezing
    assert what_is_away(raised.value) == "database"
    await limited.dispose()
    assert rows(pg_engine) == []


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
        for size in (1, 500):
            add(pg_engine, *range(size))
            await Relay(engine, publisher).publish_batch(NOW)  # the first one also opens the connection
            add(pg_engine, *range(size))
            statements.clear()
            before = proxy.turns
            settled = await Relay(engine, publisher).publish_batch(NOW)
            assert len(settled.published) + len(settled.failed) == size
            found.append((list(statements), proxy.turns - before))
        await engine.dispose()
    (small, small_turns), (large, large_turns) = found
    assert small == large == ["SELECT", "SELECT", "DELETE" if routable else "UPDATE"]
    assert large_turns <= small_turns + 20


@asynccontextmanager
async def behind_proxy(url: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    target = make_url(url)
    proxy = TcpProxy(target.host or "localhost", target.port or 0)
    try:
        yield proxy, target.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    finally:
        await asyncio.to_thread(proxy.close)
