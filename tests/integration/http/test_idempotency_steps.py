"""Two runs of a request in steps, on both databases; processes that are killed are in `test_http_contract.py`."""

import asyncio

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from outboxkit.errors import LeaseLost
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, Replay, Response
from outboxkit.http.steps import Steps
from outboxkit.runtime import process
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


async def test_steps_of_two_requests_end_each_other_under_no_default_isolation(
    async_engine: AsyncEngine, engine: Engine, database_url: str
):
    """Both records have read the same small table when they commit: under SERIALIZABLE one of them would be refused."""
    strict = process.engine(database_url, name="test").execution_options(isolation_level="SERIALIZABLE")
    together = asyncio.Barrier(2)

    @event.listens_for(strict.sync_engine, "begin")
    def read_the_whole_table(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            for way in ("indexscan", "bitmapscan"):
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")

    class Recording(Session):
        """The session below an AsyncSession."""

    @event.listens_for(Recording, "before_commit")
    def wait_for_the_other_record(_: Session) -> None:
        if strict.dialect.name == "postgresql":  # SQLite has one writer at a time
            await_only(asyncio.wait_for(together.wait(), 30))

    async def charged() -> str:
        return "charged"

    runs = [begun(engine, IN_STEPS), begun(engine, IN_STEPS | {"key": "k-2"})]
    steps = [Steps(async_sessionmaker(strict, sync_session_class=Recording), run) for run in runs]
    assert await asyncio.gather(*(each.step("charge", charged) for each in steps)) == ["charged", "charged"]
    await strict.dispose()
