"""The first row of a statement, from the driver itself: its errors are those that SQLAlchemy would have raised."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.database import connections, driver_rows
from outboxkit.runtime import process
from outboxkit.runtime.outage import Outage
from tests.support.polling import eventually_async

INSERT = text("INSERT INTO single (id) VALUES (:id) ON CONFLICT (id) DO NOTHING RETURNING pg_backend_pid()")
REFUSED = text("INSERT INTO single (id) VALUES (:id) RETURNING id")
POOL = 2


@pytest.fixture
async def engine(pg_engine: Engine) -> AsyncIterator[AsyncEngine]:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE single (id int PRIMARY KEY)"))
    made = process.engine(pg_engine.url.render_as_string(hide_password=False), name="test", pool_size=POOL)
    yield made
    await made.dispose()


def insert(connection: Connection, number: int) -> int | None:
    row = driver_rows.first(connection, INSERT, {"id": number})
    return row and row[0]


async def write(engine: AsyncEngine, number: int) -> int | None:
    async with engine.begin() as connection:
        return await connection.run_sync(insert, number)


async def test_it_is_none_if_there_is_no_row(engine: AsyncEngine):
    assert await write(engine, 1)
    assert await write(engine, 1) is None


async def test_a_refused_row_is_an_error_of_sqlalchemy_and_the_connection_is_used_again(engine: AsyncEngine):
    pid = await write(engine, 1)
    for _ in range(7):  # at the sixth the driver has prepared it
        with pytest.raises(IntegrityError) as raised:
            async with engine.begin() as connection:
                await connection.run_sync(driver_rows.first, REFUSED, {"id": 1})
        assert not raised.value.connection_invalidated
    assert await write(engine, 2) == pid


async def test_after_a_lost_connection_the_pool_gives_none_of_its_time(
    engine: AsyncEngine, pg_engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections, "JUST_SECONDS", 0)
    async with engine.connect() as one, engine.connect() as other:
        pids = [await each.run_sync(insert, number) for number, each in enumerate((one, other))]
    with pg_engine.begin() as connection:
        for pid in pids:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
    with pytest.raises(DBAPIError) as raised:
        await write(engine, 100)
    assert raised.value.connection_invalidated
    async with engine.connect() as one, engine.connect() as other:
        new = [await each.run_sync(insert, 101 + number) for number, each in enumerate((one, other))]
    assert not {*new} & {*pids, None}


async def test_a_connection_to_a_standby_is_not_used_again(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    """A name may lead to another server by now. A standby refuses writes as a read-only transaction does."""
    monkeypatch.setattr(connections, "JUST_SECONDS", 0)
    outage = Outage("test")

    async def reads_only() -> int | None:
        async with engine.begin() as connection:
            pid = await connection.run_sync(insert, 1)
            await connection.execute(text("SET TRANSACTION READ ONLY"))
            pids.append(pid)
            return await connection.run_sync(insert, 2)

    pids: list[int | None] = []
    with pytest.raises(DBAPIError, match="read-only") as raised:
        await reads_only()
    outage.begins(raised.value)
    assert await write(engine, 1) not in [None, *pids]


async def test_one_that_is_cancelled_while_it_waits_leaves_nothing(engine: AsyncEngine, pg_engine: Engine):
    def is_waiting() -> bool:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%single%'"
        with pg_engine.connect() as connection:
            return bool(connection.execute(text(asked)).scalar())

    async def waits() -> bool:
        return await asyncio.to_thread(is_waiting)

    with pg_engine.begin() as holder:
        holder.execute(text("LOCK TABLE single IN EXCLUSIVE MODE"))
        writing = asyncio.create_task(write(engine, 1))
        await eventually_async(waits)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert await write(engine, 1)
