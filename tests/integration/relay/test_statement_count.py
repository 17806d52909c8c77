"""How many statements a relayed message costs: counted on the wire, where nothing can hide."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher
from outboxkit.relay import Relay
from outboxkit.runtime import process
from tests.benchmarks import backlog
from tests.support.statements_sent import StatementsSent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libpq's trace is for Linux only")

MESSAGES, BATCH = 5_000, 500
BATCHES = MESSAGES // BATCH


@pytest.fixture
async def engine(postgresql_url: str) -> AsyncIterator[AsyncEngine]:
    """As a relay's own process makes it."""
    made = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=10))
    yield made
    await made.dispose()


async def drained(engine: AsyncEngine, url: str, *, keys: int) -> list[str]:
    """What the database is sent while a relay publishes all messages, in batches."""
    backlog.fill(url, count=MESSAGES, size=100, keys=keys)
    broker = MemoryBroker()
    broker.queue("all", ["#"])
    sent = StatementsSent(engine)
    done = await Relay(engine, MemoryPublisher(broker), batch_size=BATCH).drain(asyncio.Event())
    await engine.dispose()
    assert done.published == MESSAGES
    assert backlog.left(url) == 0
    texts = sent.texts()
    sent.close()
    return texts


@pytest.mark.parametrize("keys", [0, 1, 50, 1_000])
async def test_a_batch_is_one_claim_and_one_delete_with_its_commit(engine: AsyncEngine, postgresql_url: str, keys: int):
    texts = await drained(engine, postgresql_url, keys=keys)

    claims = [each for each in texts if "FOR UPDATE SKIP LOCKED" in each and "due_at IS NULL" in each]
    deletes = [each for each in texts if each.startswith("DELETE FROM outboxkit_outbox")]
    order = [each for each in texts if " AS batch(" in each]
    assert BATCHES <= len(deletes) <= BATCHES + 1, "the first one may be smaller"
    assert {each.rpartition("; ")[2] for each in deletes} == {"COMMIT"}, "one round trip"
    assert len(order) == (len(deletes) if keys else 0)
    assert len(deletes) < len(claims) <= len(deletes) + 2, "the last ones find nothing"
    assert len(texts) <= 0.05 * MESSAGES, "\n".join(texts)


async def test_every_statement_is_counted(postgresql_url: str):
    engine = process.engine(postgresql_url, name="test")
    sent = StatementsSent(engine)
    async with engine.connect() as connection:
        await connection.execute(text("SELECT :first, 'two\nlines'"), {"first": 1})
        driver = (await connection.get_raw_connection()).driver_connection
        assert isinstance(driver, psycopg.AsyncConnection)
        for _ in range(3):
            await driver.execute("SELECT %s::int", (1,), prepare=True)
        await connection.commit()
    await engine.dispose()

    ours = [each for each in sent.texts() if each in {"BEGIN", "COMMIT", "SELECT $1::int"} or "lines" in each]
    sent.close()
    assert ours == ["BEGIN", "SELECT $1, 'two\nlines'", *["SELECT $1::int"] * 3, "COMMIT"]
