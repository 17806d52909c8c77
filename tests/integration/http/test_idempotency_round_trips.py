"""How often a request goes to the database and back: counted on the wire."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Judgement, Mismatch
from outboxkit.runtime import process
from tests.support.ledger_requests import ASKED, CREATED, IN_STEPS, OTHER, done
from tests.support.tcp_proxy import TcpProxy

WARM_UP, REQUESTS = 20, 30
"""The driver prepares a statement that it has seen a few times, which is a round trip of its own, once."""
THE_TRANSACTION = 2
"""Its BEGIN and its COMMIT, which the work needs anyway."""


@pytest.fixture
def proxy(pg_engine: Engine) -> AsyncIterator[TcpProxy]:
    made = TcpProxy(pg_engine.url.host or "", pg_engine.url.port or 5432)
    yield made
    made.close()


@pytest.fixture
async def engine(pg_engine: Engine, proxy: TcpProxy) -> AsyncIterator[AsyncEngine]:
    there = make_url(pg_engine.url).set(host="127.0.0.1", port=proxy.port)
    made = process.engine(there.render_as_string(hide_password=False), name="test")
    yield made
    await made.dispose()


async def serve(engine: AsyncEngine, asked: dict[str, Any]) -> Judgement:
    async with AsyncSession(engine) as session:
        outcome = await session.run_sync(ledger.begin, **asked)
        if isinstance(outcome, Fresh) and outcome.lease is None:
            await session.run_sync(ledger.complete, outcome, CREATED)
        await session.commit()
        return outcome


async def turns(engine: AsyncEngine, proxy: TcpProxy, asked: list[dict[str, Any]]) -> float:
    """Round trips for each of the requests, without those of the transaction itself."""
    for each in asked[:WARM_UP]:
        await serve(engine, each)
    before = proxy.turns
    for each in asked[WARM_UP:]:
        await serve(engine, each)
    return (proxy.turns - before) / (len(asked) - WARM_UP) - THE_TRANSACTION


def numbered(asked: dict[str, Any]) -> list[dict[str, Any]]:
    return [asked | {"key": f"k-{number}"} for number in range(WARM_UP + REQUESTS)]


async def test_a_fresh_request_costs_two(engine: AsyncEngine, proxy: TcpProxy):
    assert await turns(engine, proxy, numbered(ASKED)) == 2


async def test_a_replay_costs_two(engine: AsyncEngine, proxy: TcpProxy, pg_engine: Engine):
    done(pg_engine)
    assert await turns(engine, proxy, [ASKED] * (WARM_UP + REQUESTS)) == 2


async def test_a_lease_costs_one(engine: AsyncEngine, proxy: TcpProxy):
    assert await turns(engine, proxy, numbered(IN_STEPS)) == 1


@pytest.mark.parametrize(("asked", "outcome"), [(ASKED, InProgress()), (OTHER, Mismatch())])
async def test_what_the_open_holder_does_costs_three(
    engine: AsyncEngine, proxy: TcpProxy, async_pg_engine: AsyncEngine, asked: dict[str, Any], outcome: Judgement
):
    async with AsyncSession(async_pg_engine) as holder:
        await holder.run_sync(ledger.begin, **ASKED)
        assert await serve(engine, asked) == outcome
        assert await turns(engine, proxy, [asked] * (WARM_UP + REQUESTS)) == 3
