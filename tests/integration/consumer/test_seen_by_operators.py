"""The row of a consumer at work, the lengths of its queues, and the messages that it tries again."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import Connection, Engine, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import inbox_handler, tables
from outboxkit.operators.doctor import messages
from outboxkit.operators.retries import read_retried
from outboxkit.operators.trace import TraceQuery, trace_messages
from outboxkit.runtime import process
from outboxkit.runtime.workers import Presence, read_workers
from tests.integration.consumer.running_consumer import Ordered, Start, publish
from tests.integration.operators.doctoring import one, role
from tests.integration.relay.recording import Recorder, fill, relay, running
from tests.support.pages import libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

T = TypeVar("T")


async def read(engine: Engine, reader: Callable[[Connection], T]) -> T:
    def reading() -> T:
        with engine.connect() as connection:
            return reader(connection)

    return await asyncio.to_thread(reading)


def rates(engine: Engine) -> Callable[[], Awaitable[list[float | None]]]:
    return partial(read, engine, lambda connection: [each.rate for each in read_workers(connection)])


def noted(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(tables.attempt)).all())


async def test_a_row_tells_who_consumes_and_how_many_places_are_taken_and_how_long_the_queues_are(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    may_end = asyncio.Event()

    @inbox_handler("Wait")
    async def wait(session: AsyncSession, event: Ordered) -> None:
        await may_end.wait()

    async with start(wait) as consumer:
        seen = partial(read, pg_engine, read_workers)
        for number in range(150):
            publish(broker, number, f"m{number}")
        try:
            (row,) = await eventually_async(
                seen, lambda rows: [each.taken for each in rows] == [each.places for each in rows] != []
            )
            assert (row.kind, row.name, row.exchange, row.rests) == ("consumer", broker.queue, broker.exchange, False)
            assert "@" not in (row.broker or "@")
            lengths = await eventually_async(seen, lambda rows: rows[0].queues.get(broker.queue, 0) == broker.depth())
            assert 0 < lengths[0].queues[broker.queue] < 150, "the others were pushed to the consumer"
            assert lengths[0].queues[f"{broker.queue}.dead"] == 0
        finally:
            may_end.set()  # else its end would wait for the handlers
        await consumer.reaches(processed=150)
    assert await read(pg_engine, read_workers) == (), "it deletes its row"


@pytest.mark.parametrize("batch", [False, True])
async def test_a_row_tells_how_many_messages_a_second_are_handled(
    start: Start, pg_engine: Engine, broker: PlainClient, *, batch: bool
):
    @inbox_handler("Count", batch=batch)
    async def count(session: AsyncSession, event: Ordered) -> None: ...

    @inbox_handler("CountToo", batch=batch)
    async def count_too(session: AsyncSession, event: Ordered) -> None: ...

    async with start(count, count_too) as consumer:
        await eventually_async(rates(pg_engine), lambda found: found == [None])
        await consumer.takes(range(100), processed=200)
        assert consumer.consumer.handled == 100, "a message counts once for all its handlers"
        (first,) = await eventually_async(rates(pg_engine), lambda found: found != [None])
        assert 0 < (first or 0) < 100, "a rate is of more than a second"
        await eventually_async(rates(pg_engine), lambda found: found == [0])


async def test_a_row_tells_how_many_messages_a_second_are_published(pg_engine: Engine, async_pg_engine: AsyncEngine):
    async with running(relay(async_pg_engine, Recorder())):
        await eventually_async(rates(pg_engine), lambda found: found == [None])
        fill(pg_engine, 100, keys=1)
        (first,) = await eventually_async(rates(pg_engine), lambda found: found != [None])
        assert 0 < (first or 0) < 100, "a rate is of more than a second"


async def test_a_message_that_failed_twice_is_known_until_it_is_handled(
    start: Start, async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient, postgresql_url: str
):
    mended, failures = asyncio.Event(), 0

    @inbox_handler("Charge")
    async def charge(session: AsyncSession, event: Ordered) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise ValueError(f"no account for {event.number}")
        await mended.wait()

    async with start(charge) as consumer:
        publish(broker, 7, "m1", headers={"outboxkit-key": "evil"})
        await consumer.reaches(retried=1)
        assert noted(pg_engine) == [], "a first failure costs no row"
        await consumer.reaches(retried=2)
        groups = partial(read, pg_engine, read_retried)
        (group,) = await eventually_async(groups, lambda found: len(found) == 1)
        assert (group.handler, group.messages.value, group.attempt) == ("Charge", 1, 2)
        assert "no account for 7" in group.error
        finding = await asyncio.to_thread(one, postgresql_url, messages.check_retried, "handler-failing")
        assert "1 message of queue" in finding.what
        (traced,) = (await trace_messages([async_pg_engine], TraceQuery(key="evil"))).messages
        assert (traced.message_id, traced.state) == ("m1", "retried")
        assert "attempt 2 failed" in traced.why[0].text
        mended.set()
        await consumer.reaches(retried=2, processed=1)
        await eventually_async(groups, lambda found: found == ())
    assert noted(pg_engine) == []


async def test_a_consumer_that_may_not_write_its_row_works_without(postgresql_url: str, pg_engine: Engine):
    """Its log names the grant, once."""
    with role(postgresql_url) as (name, url), psycopg.connect(libpq(postgresql_url), autocommit=True) as owner:
        owner.execute(f"REVOKE ALL ON outboxkit_worker FROM {name}")
        engine = process.engine(url, name="outboxkit consumer q")
        presence = Presence(engine, "consumer", "q")
        with capture_logs() as said:
            async with engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                await presence.write(connection)
                await presence.write(connection)
        await presence.leave()
        await engine.dispose()
    assert [line["event"] for line in said] == ["this worker is in no list of workers"]
    assert await read(pg_engine, read_workers) == ()


async def test_a_row_that_could_not_be_written_at_once_is_written_later(postgresql_url: str, pg_engine: Engine):
    engine = process.engine(f"{postgresql_url}?options=-clock_timeout%3D50", name="outboxkit consumer q")
    presence = Presence(engine, "consumer", "q")
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pg_engine.begin() as holder:
            holder.execute(text("LOCK TABLE outboxkit_worker"))
            await presence.write(connection)
        await presence.write(connection)
    assert len(await read(pg_engine, read_workers)) == 1
    await presence.leave()
    await engine.dispose()


async def test_a_worker_whose_session_number_somebody_else_has_by_now_is_gone(
    async_pg_engine: AsyncEngine, pg_engine: Engine, postgresql_url: str
):
    """The server was started again, and gives the numbers of killed workers' sessions to younger ones."""
    presence = Presence(async_pg_engine, "relay")
    async with async_pg_engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await presence.write(connection)
    named = f"{libpq(postgresql_url)}?application_name=outboxkit%20relay"
    with psycopg.connect(named) as younger, pg_engine.begin() as connection:
        silent = {"seen_at": func.now() - timedelta(minutes=1), "sessions": f"[{younger.info.backend_pid}]"}
        connection.execute(update(tables.worker).values(silent))
        assert read_workers(connection) == ()
