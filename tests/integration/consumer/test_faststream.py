"""`inbox.run_once` in somebody else's consumer: FastStream on RabbitMQ, as the how-to page shows it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from faststream import AckPolicy, FastStream
from faststream.rabbit import ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue
from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, event, ids, inbox, inbox_handler, outbox, tables
from outboxkit.relay import Relay
from outboxkit.runtime import process
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

EFFECTS = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("order_id", Integer))


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@event("Billed")
@dataclass(frozen=True)
class Billed:
    number: int


@pytest.fixture(autouse=True)
def _effects(pg_engine: Engine) -> None:
    EFFECTS.metadata.create_all(pg_engine)


def message_of(received: RabbitMessage) -> Message:
    found = received.raw_message
    return Message(
        id=found.message_id or "",
        type=found.type or "",
        payload=found.body,
        headers={name: value for name, value in found.headers.items() if not name.startswith("outboxkit-")},
        correlation_id=found.correlation_id,
        created_at=found.timestamp,
    )


async def as_it_came(received: RabbitMessage) -> bytes:
    return received.body


@asynccontextmanager
async def running(engine: AsyncEngine, broker: PlainClient, handler: object) -> AsyncIterator[list[object]]:
    """A FastStream application that runs this handler; gives what came of each delivery."""
    outcomes: list[object] = []
    rabbit = RabbitBroker(broker.url)
    queue = RabbitQueue(broker.bind("Ordered"), queue_type=QueueType.QUORUM, durable=True, routing_key="Ordered")
    exchange = RabbitExchange(broker.exchange, type=ExchangeType.TOPIC, durable=True)

    @rabbit.subscriber(queue, exchange, ack_policy=AckPolicy.NACK_ON_ERROR, decoder=as_it_came)
    async def on_message(body: bytes, received: RabbitMessage) -> None:
        try:
            async with AsyncSession(engine) as session, session.begin():
                outcome = await session.run_sync(inbox.run_once, message_of(received), handler)
            outcomes.append(str(outcome))
        except Exception as error:
            outcomes.append(error)
            raise

    app = FastStream(rabbit)
    await app.start()
    try:
        yield outcomes
    finally:
        await app.stop()


async def committed(engine: AsyncEngine) -> tuple[list[int], list[tuple[object, ...]], list[str]]:
    """The effects, what is in the outbox and why, and which messages the inbox knows."""
    columns = tables.outbox.c
    async with AsyncSession(engine) as session:
        return (
            list(await session.scalars(select(EFFECTS.c.order_id).order_by(EFFECTS.c.id))),
            [
                tuple(row)
                for row in await session.execute(
                    select(columns.type, columns.causation_id, columns.correlation_id).order_by(columns.position)
                )
            ],
            list(await session.scalars(select(tables.inbox.c.message_id).order_by(tables.inbox.c.message_id))),
        )


@inbox_handler("BillOrder")
async def bill(session: AsyncSession, event: Ordered) -> None:
    await session.execute(insert(EFFECTS).values(order_id=event.number))
    outbox.add(session, Billed(event.number))


async def test_duplicates_have_one_effect(async_pg_engine: AsyncEngine, broker: PlainClient):
    first, second = ids.new(), "of-a-foreign-client"
    async with running(async_pg_engine, broker, bill) as outcomes:
        for id_ in (first, second, first, first, second):
            broker.publish(b'{"number": 7}', topic="Ordered", message_id=id_, type="Ordered", correlation_id="story")
        await eventually_async(lambda: asyncio.sleep(0, len(outcomes)), lambda count: count == 5)
    assert sorted(outcomes) == ["duplicate"] * 3 + ["processed"] * 2
    effects, added, known = await committed(async_pg_engine)
    assert effects == [7, 7]
    assert sorted(added) == sorted([("Billed", first, "story"), ("Billed", second, "story")])
    assert known == sorted([first, second])
    assert broker.depth() == 0


async def test_a_handler_that_fails_leaves_nothing_and_the_message_comes_again(
    async_pg_engine: AsyncEngine, broker: PlainClient
):
    failures = [ValueError("first"), ValueError("second")]

    @inbox_handler("BillOrder")
    async def fails_twice(session: AsyncSession, event: Ordered) -> None:
        await bill(session, event)
        await session.flush()
        if failures:
            assert await committed(async_pg_engine) == ([], [], [])
            raise failures.pop()

    async with running(async_pg_engine, broker, fails_twice) as outcomes:
        broker.publish(b'{"number": 8}', topic="Ordered", message_id="m", type="Ordered")
        await eventually_async(lambda: asyncio.sleep(0, len(outcomes)), lambda count: count == 3)
    assert [str(outcome) for outcome in outcomes] == ["second", "first", "processed"]
    assert await committed(async_pg_engine) == ([8], [("Billed", "m", "m")], ["m"])
    assert broker.depth() == 0


async def test_what_the_relay_published_is_handled_and_carries_on_its_story(
    async_pg_engine: AsyncEngine, broker: PlainClient
):
    async with running(async_pg_engine, broker, bill) as outcomes:
        async with AsyncSession(async_pg_engine) as session, session.begin():
            added = outbox.add(
                session, Ordered(9), headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
            )
        publisher = process.publisher(broker.url, exchange=broker.exchange, timeout=timedelta(seconds=10))
        await Relay(async_pg_engine, publisher, batch_size=10).drain(asyncio.Event())
        await publisher.close()
        await eventually_async(lambda: asyncio.sleep(0, outcomes))
    assert outcomes == ["processed"]
    assert await committed(async_pg_engine) == ([9], [("Billed", added.id, added.id)], [added.id])
