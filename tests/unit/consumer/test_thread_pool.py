"""Threads for plain handlers, on SQLite: where they run, what they see, and how they end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Outcome, inbox, inbox_handler, tables
from outboxkit.consumer import threads
from outboxkit.consumer.threads import THREAD_NAME, Threads
from outboxkit.database import engines
from tests.unit.inbox.test_call import LONG_QUERY
from tests.unit.shop import OrderConfirmed, count, effects, message

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


async def test_a_timeout_that_is_not_reached_changes_nothing(started: Threads):
    @inbox_handler("Quick", timeout=60)
    def quick(session: Session, event: OrderConfirmed) -> None: ...

    assert [await run(started, quick) for _ in range(2)] == [Outcome.PROCESSED, Outcome.DUPLICATE]


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


@pytest.mark.parametrize("url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:"])
async def test_beside_a_database_in_memory_there_is_no_other_connection(url: str):
    engine = create_async_engine(url)
    with pytest.raises(ConfigurationError, match=r"in one connection. Set thread_engine .* in_loop=True"):
        await engines.beside(engine, pool_size=1)
    await engine.dispose()


async def test_an_engine_of_ones_own_is_used_and_stays_open(async_engine: AsyncEngine, database_url: str):
    own = create_engine(database_url)
    started = Threads(async_engine, size=1, process="test", own=own)
    assert await started.run(lambda session: session.get_bind()) is own
    started.close()
    assert own.pool.checkedin() == 1
    own.dispose()
