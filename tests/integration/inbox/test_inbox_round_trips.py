"""How often a handled message goes to the database and back: counted on the wire."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Outcome, ids, inbox, inbox_handler
from outboxkit.inbox import Entry, handler_of
from outboxkit.runtime import process
from tests.support.tcp_proxy import TcpProxy
from tests.unit.shop import OrderConfirmed, message

EFFECTS = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("order_id", Integer))
WARM_UP, MESSAGES = 20, 50
"""The driver prepares a statement that it has seen a few times, which is a round trip of its own, once."""


@inbox_handler("Bill", batch=True, timeout=60)
async def bill(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(EFFECTS).values(order_id=event.order_id))


@pytest.fixture
def proxy(pg_engine: Engine) -> AsyncIterator[TcpProxy]:
    EFFECTS.metadata.create_all(pg_engine)
    made = TcpProxy(pg_engine.url.host or "", pg_engine.url.port or 5432)
    yield made
    made.close()


@pytest.fixture
async def engine(pg_engine: Engine, proxy: TcpProxy) -> AsyncIterator[AsyncEngine]:
    there = make_url(pg_engine.url).set(host="127.0.0.1", port=proxy.port)
    made = process.engine(there.render_as_string(hide_password=False), name="test")
    yield made
    await made.dispose()


async def handle(engine: AsyncEngine, id_: str | None = None) -> Outcome:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_once, message(id=id_ or ids.new()), bill)


async def test_a_message_in_a_session_of_the_application_costs_five_round_trips(engine: AsyncEngine, proxy: TcpProxy):
    for _ in range(WARM_UP):
        await handle(engine)
    before = proxy.turns
    for _ in range(MESSAGES):
        assert await handle(engine) is Outcome.PROCESSED
    assert proxy.turns - before == 5 * MESSAGES, "a consumer lifts the guard together with the COMMIT"


async def test_a_duplicate_costs_four(engine: AsyncEngine, proxy: TcpProxy):
    for _ in range(WARM_UP):
        await handle(engine, "m")
    before = proxy.turns
    for _ in range(MESSAGES):
        assert await handle(engine, "m") is Outcome.DUPLICATE
    assert proxy.turns - before == 4 * MESSAGES, "BEGIN, the inbox row, the payload of the first one, COMMIT"


async def test_a_batch_costs_four_and_what_its_handlers_ask(engine: AsyncEngine, proxy: TcpProxy):
    async def batch() -> None:
        entries = [Entry.of(message(id=ids.new()), handler_of(bill)) for _ in range(MESSAGES)]
        async with AsyncSession(engine) as session, session.begin():
            assert await session.run_sync(inbox.run_batch, entries) == [Outcome.PROCESSED] * MESSAGES

    for _ in range(WARM_UP):
        await batch()
    before = proxy.turns
    await batch()
    assert proxy.turns - before == 4 + MESSAGES
