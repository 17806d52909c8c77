"""How many statements a relayed message costs: counted on the wire, where nothing can hide."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.brokers import Verdict
from outboxkit.relay import Relay
from outboxkit.runtime import process
from tests.benchmarks import backlog
from tests.integration.relay.recording import Recorder, add, behind_proxy, turn
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


@pytest.mark.parametrize("keys", [0, 50])
async def test_a_batch_is_one_claim_and_one_delete_with_its_commit(engine: AsyncEngine, postgresql_url: str, keys: int):
    backlog.fill(postgresql_url, count=MESSAGES, size=100, keys=keys)
    sent = StatementsSent(engine)
    done = await Relay(engine, Recorder(), batch_size=BATCH).drain(asyncio.Event())
    await engine.dispose()
    assert done.published == MESSAGES
    texts = sent.texts()
    sent.close()
    claims = [each for each in texts if "FOR UPDATE SKIP LOCKED" in each and "due_at IS NULL" in each]
    deletes = [each for each in texts if each.startswith("DELETE FROM outboxkit_outbox")]
    order = [each for each in texts if " AS batch(" in each]
    assert BATCHES <= len(deletes) <= BATCHES + 1, "the first one may be smaller"
    assert {each.rpartition("; ")[2] for each in deletes} == {"COMMIT"}, "one round trip"
    assert len(order) == (len(deletes) if keys else 0)
    assert len(deletes) < len(claims) <= len(deletes) + 2, "the last ones find nothing"
    assert len(texts) <= 0.05 * MESSAGES, "\n".join(texts)


async def test_failures_of_a_batch_take_one_statement_and_hardly_more_round_trips_than_one_failure(
    pg_engine: Engine, postgresql_url: str
):
    refusing, found = Recorder(lambda _: Verdict.UNROUTABLE), []
    async with behind_proxy(postgresql_url) as (proxy, url):
        engine = process.engine(url, name="counted")
        statements: list[str] = []
        event.listen(
            engine.sync_engine, "before_cursor_execute", lambda _, __, statement, *___: statements.append(statement[:6])
        )
        for size in (1, 90, 1, 90):  # the first two also open the connections, and prepare their statements
            add(pg_engine, *range(size))
            statements.clear()
            before = proxy.turns
            (settled,) = await turn(engine, refusing)
            assert len(settled.failed) == size
            found.append((list(statements), proxy.turns - before))
        await engine.dispose()
    (small, small_turns), (large, large_turns) = found[2:]
    assert small == large == ["UPDATE"]
    assert large_turns <= small_turns + 10
