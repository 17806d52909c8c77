"""Two runs of a request in steps, on both databases; processes that are killed are in `test_http_contract.py`."""

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from outboxkit.errors import LeaseLost
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, Replay, Response
from outboxkit.http.steps import Steps
from tests.support.ledger_requests import IN_STEPS, begun, end_leases, row, told


async def test_two_runs_of_one_request_answer_once(async_engine: AsyncEngine, engine: Engine):
    """The lease of the first ends while it calls; the second overtakes it, and the first can write nothing."""
    sessions = async_sessionmaker(async_engine)
    second: list[Response] = []

    async def complete(fresh: Fresh, text: str) -> Response:
        response = Response(200, (), text.encode())
        async with AsyncSession(async_engine) as session, session.begin():
            await session.run_sync(ledger.complete, fresh, response)
        return response

    async def overtaken() -> str:
        end_leases(engine)
        other = begun(engine, IN_STEPS)
        assert isinstance(other, Fresh)
        steps = Steps(sessions, other)
        assert await steps.step("reserve", never) == "reserved"
        assert steps.key("charge") == first.key("charge")
        await steps.step("charge", charged)
        second.append(await complete(other, "second"))
        return "too late"

    async def charged() -> str:
        return "charged"

    async def never() -> str:
        raise AssertionError("a finished step was called")

    async def reserved() -> str:
        return "reserved"

    slow = begun(engine, IN_STEPS)
    first = Steps(sessions, slow)
    await first.step("reserve", reserved)
    with pytest.raises(LeaseLost, match="step 'charge' was called, and its result is lost"):
        await first.step("charge", overtaken)
    with pytest.raises(LeaseLost):
        await complete(slow, "first")
    found = told(engine, IN_STEPS)
    assert isinstance(found, Replay)
    assert [found.response] == second


async def test_no_transaction_is_open_during_a_call(async_engine: AsyncEngine, engine: Engine):
    """Others write meanwhile, on SQLite too, and the pool has all its connections."""

    async def call() -> int:
        assert async_engine.pool.checkedout() == 0
        begun(engine, IN_STEPS | {"key": "k-2"})
        return 7

    steps = Steps(async_sessionmaker(async_engine), begun(engine, IN_STEPS))
    assert await steps.step("charge", call) == 7
    assert row(engine, "k-2") is not None
