"""The first statement of a transaction goes out with its BEGIN; after it the connection works, or is gone."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.runtime import process
from tests.support.polling import eventually_async

INSERT = text("INSERT INTO single (id) VALUES (:id) RETURNING pg_backend_pid()")
PREPARED = 10
"""After so many runs the driver has prepared the statement."""


@pytest.fixture
async def engine(pg_engine: Engine) -> AsyncIterator[AsyncEngine]:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE single (id int PRIMARY KEY)"))
    made = process.engine(pg_engine.url.render_as_string(hide_password=False), name="test", pool_size=1)
    for number in range(PREPARED):
        await write(made, number)
    yield made
    await made.dispose()


async def write(engine: AsyncEngine, number: int) -> int:
    async with engine.begin() as connection:
        return (await connection.execute(INSERT, {"id": number})).scalar_one()


async def test_one_that_fails_is_rolled_back_and_the_connection_is_used_again(engine: AsyncEngine):
    pid = await write(engine, 100)
    for _ in range(3):
        with pytest.raises(IntegrityError):
            await write(engine, 1)
    assert await write(engine, 101) == pid


async def test_one_whose_connection_is_lost_says_so(engine: AsyncEngine, pg_engine: Engine):
    pid = await write(engine, 100)
    with pg_engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
    with pytest.raises(DBAPIError) as raised:
        await write(engine, 101)
    assert raised.value.connection_invalidated
    assert await write(engine, 101) != pid


async def test_one_that_is_cancelled_while_it_waits_leaves_nothing(engine: AsyncEngine, pg_engine: Engine):
    def is_waiting() -> bool:
        with pg_engine.connect() as connection:
            asked = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%single%'"
            )
            return bool(connection.execute(text(asked)).scalar())

    async def waits() -> bool:
        return await asyncio.to_thread(is_waiting)

    with pg_engine.begin() as holder:
        holder.execute(text("LOCK TABLE single IN EXCLUSIVE MODE"))
        writing = asyncio.create_task(write(engine, 100))
        await eventually_async(waits)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await write(engine, 100)
