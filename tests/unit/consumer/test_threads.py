"""A consumer of plain handlers, which run in threads."""

import asyncio
import threading

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Outcome, inbox_handler
from outboxkit.runtime import process
from outboxkit.schema import migrations
from tests.unit.consumer.conftest import Bench
from tests.unit.shop import OrderConfirmed, StockChanged, message


async def test_a_plain_handler_that_blocks_stops_nobody_else(bench: Bench):
    gate = threading.Event()

    @inbox_handler("Blocks")
    def blocks(session: Session, event: OrderConfirmed) -> None:
        assert gate.wait(60), "only the event loop opens it"

    @inbox_handler("Stocks")
    async def opens(session: AsyncSession, event: StockChanged) -> None: ...

    bench.put(message())
    running = asyncio.create_task(bench.consumer(blocks, opens).run(bench.stop))
    while not bench.subscriber.unacked:
        await asyncio.sleep(0.005)
    gate.set()
    while bench.subscriber.unacked:
        await asyncio.sleep(0.005)
    bench.stop.set()
    await running


async def test_without_a_synchronous_engine_for_a_plain_handler_it_does_not_start(bench: Bench):
    @inbox_handler("Plain")
    def plain(session: Session, event: OrderConfirmed) -> None: ...

    bench.engine = process.engine("sqlite:///:memory:", name="unit tests")
    async with bench.engine.begin() as connection:
        await connection.run_sync(migrations.migrate)
    with pytest.raises(ConfigurationError, match="Set thread_engine"):
        await bench.drain(plain)
    await bench.engine.dispose()


async def test_its_thread_engine_can_be_given(bench: Bench, database_url: str):
    @inbox_handler("Plain")
    def plain(session: Session, event: OrderConfirmed) -> None:
        binds.append(session.get_bind())

    binds: list[object] = []
    consumer, own = bench.consumer(plain), create_engine(database_url)
    consumer.thread_engine = own
    bench.put(message())
    assert (await consumer.drain(bench.stop)).outcomes == {Outcome.PROCESSED: 1}
    assert binds == [consumer.thread_engine] == [own]
    own.dispose()
