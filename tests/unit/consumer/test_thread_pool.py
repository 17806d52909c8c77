"""Threads for plain handlers, on SQLite: where they run, what they see, and how they end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Outcome, inbox, inbox_handler, tables
from outboxkit.consumer import threads
from outboxkit.consumer.threads import THREAD_NAME, Threads
from outboxkit.runtime import process
from outboxkit.schema import migrations
from tests.unit.consumer.conftest import Bench
from tests.unit.inbox.test_call import LONG_QUERY
from tests.unit.shop import OrderConfirmed, StockChanged, count, effects, message

tenant: ContextVar[str] = ContextVar("tenant", default="none")


@inbox_handler("Work")
def work(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"{threading.current_thread().name} of {tenant.get()}"))
    tenant.set("another one")


@pytest.fixture
async def started(async_engine: AsyncEngine) -> AsyncIterator[Threads]:
    made = Threads(async_engine, size=2, process="test")
    yield made
    made.close()


async def run(started: Threads, handler: object, id_: str = "m-1") -> Outcome:
    return await started.run(partial(inbox.run_once, message=message(id=id_), handler=handler))


def handler_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == THREAD_NAME}


async def test_it_runs_in_a_thread_with_the_context_of_its_caller(started: Threads, engine):
    tenant.set("acme")
    assert await run(started, work) is Outcome.PROCESSED
    assert await run(started, work) is Outcome.DUPLICATE
    assert tenant.get() == "acme"
    with Session(engine) as session:
        assert session.scalars(text("SELECT what FROM effects")).all() == [f"{THREAD_NAME} of acme"]


async def test_threads_are_used_again_and_end_when_they_are_closed(started: Threads):
    before = handler_threads()
    for number in range(5):
        await run(started, work, f"m-{number}")
    (thread,) = handler_threads() - before
    started.close()
    thread.join(60)
    assert not thread.is_alive()
    assert await run(started, work, "later") is Outcome.PROCESSED, "it opens again"


async def test_a_statement_that_takes_too_long_is_interrupted(started: Threads, database_url: str):
    @inbox_handler("Slow", timeout=0.05)
    def slow(session: Session, event: OrderConfirmed) -> None:
        work(session, event)
        while True:
            session.execute(LONG_QUERY)

    with pytest.raises(TimeoutError, match=r"handler 'Slow' took longer than 0.05 s and was cancelled"):
        await run(started, slow)
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0
    assert await run(started, work) is Outcome.PROCESSED


@pytest.mark.parametrize("timeout", [0.1, None])
async def test_what_was_given_up_cannot_commit_even_on_a_connection_that_works(
    started: Threads, database_url: str, monkeypatch: pytest.MonkeyPatch, timeout: float | None
):
    monkeypatch.setattr(threads, "GRACE_SECONDS", 0.1)
    begun, gate, worked = threading.Event(), threading.Event(), threading.Event()

    @inbox_handler("Stuck", timeout=timeout)
    def stuck(session: Session, event: OrderConfirmed) -> None:
        begun.set()
        gate.wait(60)
        work(session, event)
        worked.set()

    running = asyncio.create_task(run(started, stuck))
    await asyncio.to_thread(begun.wait, 60)
    if timeout is None:
        running.cancel()
    with pytest.raises(asyncio.CancelledError if timeout is None else TimeoutError):
        await running
    gate.set()
    async with asyncio.timeout(60):
        while started.left:
            await asyncio.sleep(0.005)
    assert worked.is_set()
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0
    assert await run(started, work) is Outcome.PROCESSED


def test_a_thread_that_outlives_its_event_loop_ends(database_url: str):
    begun, gate = threading.Event(), threading.Event()
    before = handler_threads()

    def wait(session: Session) -> None:
        begun.set()
        gate.wait(60)

    async def leave() -> None:
        engine = create_async_engine(database_url.replace("sqlite:", "sqlite+aiosqlite:"))
        started = Threads(engine, size=1, process="test")
        task = asyncio.create_task(started.run(wait))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(started.left) == 1
        started.close()
        await engine.dispose()

    asyncio.run(leave())
    (thread,) = handler_threads() - before
    gate.set()
    thread.join(60)
    assert not thread.is_alive()


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


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
async def test_without_a_synchronous_engine_for_a_plain_handler_it_does_not_start(bench: Bench, url: str):
    @inbox_handler("Plain")
    def plain(session: Session, event: OrderConfirmed) -> None: ...

    bench.engine = process.engine(url, name="unit tests")
    async with bench.engine.begin() as connection:
        await connection.run_sync(migrations.migrate)
    with pytest.raises(ConfigurationError, match=r"in one connection. Set thread_engine .* in_loop=True"):
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
    assert own.pool.checkedin() == 1, "it stays open"
    own.dispose()
