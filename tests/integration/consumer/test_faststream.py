"""`inbox.run_once` in somebody else's consumer: FastStream on RabbitMQ, as the how-to page shows it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from faststream import AckPolicy, FastStream
from faststream.rabbit import ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue
from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, inbox, inbox_handler, outbox, tables
from outboxkit.relay import Relay
from outboxkit.runtime import process
from tests.integration.consumer.running_consumer import Billed, Ordered, publish
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

EFFECTS = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("order_id", Integer))


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
    """The effects, what the handler has added to the outbox and why, and which messages the inbox knows."""
    columns = tables.outbox.c
    added = select(columns.causation_id, columns.correlation_id).where(columns.type == "Billed")
    async with AsyncSession(engine) as session:
        return (
            list(await session.scalars(select(EFFECTS.c.order_id))),
            [tuple(row) for row in await session.execute(added)],
            list(await session.scalars(select(tables.inbox.c.message_id))),
        )


async def test_a_message_of_the_relay_comes_again_until_it_is_handled_and_has_its_effect_once(
    async_pg_engine: AsyncEngine, broker: PlainClient
):
    failures = [ValueError("first"), ValueError("second")]

    @inbox_handler("BillOrder")
    async def bill(session: AsyncSession, event: Ordered) -> None:
        await session.execute(insert(EFFECTS).values(order_id=event.number))
        outbox.add(session, Billed(event.number))
        await session.flush()
        if failures:
            assert await committed(async_pg_engine) == ([], [], [])
            raise failures.pop()

    async with running(async_pg_engine, broker, bill) as outcomes:
        async with AsyncSession(async_pg_engine) as session, session.begin():
            id_ = outbox.add(session, Ordered(8), headers={"tenant": "a"}).id
        publisher = process.publisher(broker.url, exchange=broker.exchange, timeout=timedelta(seconds=10))
        await Relay(async_pg_engine, publisher, batch_size=10).drain(asyncio.Event())
        await publisher.close()
        await eventually_async(lambda: asyncio.sleep(0, len(outcomes)), lambda count: count == 3)
        publish(broker, 8, id_)
        await eventually_async(lambda: asyncio.sleep(0, len(outcomes)), lambda count: count == 4)
    assert [str(outcome) for outcome in outcomes] == ["second", "first", "processed", "duplicate"]
    assert await committed(async_pg_engine) == ([8], [(id_, id_)], [id_])
    assert broker.depth() == 0
