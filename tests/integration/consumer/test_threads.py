"""Plain handlers in threads on PostgreSQL: their timeouts, and what was given up commits nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Message, Outcome, inbox, inbox_handler, outbox
from outboxkit.consumer import threads as pool
from outboxkit.consumer.threads import Threads
from outboxkit.database import engines
from outboxkit.inbox import handler_of
from tests.integration.consumer.running_consumer import Ordered
from tests.integration.inbox.test_inbox_postgresql import backends, committed
from tests.support.polling import eventually_async

MESSAGE = Message(id="m", type="Ordered", payload=b'{"number":7}')
OTHER = replace(MESSAGE, id="other")


@inbox_handler("Bill", batch=True)
def bill(session: Session, event: Ordered) -> None:
    outbox.add(session, event)


@inbox_handler("Hangs", timeout=0.2, batch=True)
def hangs(session: Session, event: Ordered) -> None:
    bill(session, event)
    session.execute(text("SELECT pg_sleep(600)"))


@inbox_handler("Swallows", timeout=0.2)
def swallows(session: Session, event: Ordered) -> None:
    for _ in range(2):
        try:
            hangs(session, event)
        except SQLAlchemyError:
            session.info["swallowed"] = True


class Stuck:
    """A handler that waits in Python until it is let go, and then uses its session."""

    def __init__(self, *, timeout: float | None = None) -> None:
        self.waits, self.gate, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.error: BaseException | None = None

        @inbox_handler("Bill", timeout=timeout)
        def stuck(session: Session, event: Ordered) -> None:
            bill(session, event)
            session.flush()
            self.waits.set()
            self.gate.wait(60)
            try:
                session.execute(text("SELECT 1"))
            except SQLAlchemyError as error:
                self.error = error
            self.ended.set()

        self.handler = stuck


@pytest.fixture
async def started(async_pg_engine: AsyncEngine) -> AsyncIterator[Threads]:
    made = Threads(async_pg_engine, size=2, process="test")
    yield made
    made.close()


async def run(started: Threads, handler: object, message: Message = MESSAGE) -> Outcome:
    return await started.run(partial(inbox.run_once, message=message, handler=handler))


async def true(condition: Callable[[], object]) -> None:
    """Return once the condition holds, while the loop goes on."""

    async def read() -> object:
        return condition()

    await eventually_async(read)


async def none_is_left(engine: AsyncEngine) -> None:
    async def left() -> int:
        in_work = "(state LIKE 'idle in transaction%' OR query LIKE '%pg_sleep(600)%')"
        return await backends(engine, f"{in_work} AND pid <> pg_backend_pid()")

    await eventually_async(left, lambda count: count == 0)


@pytest.mark.parametrize("handler", [hangs, swallows])
async def test_a_handler_whose_statement_hangs_is_cancelled_in_the_server_too(
    started: Threads, async_pg_engine: AsyncEngine, handler: object
):
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"handler '\w*' took longer than 0.2 s and was cancelled"):
            await run(started, handler)
    await none_is_left(async_pg_engine)
    assert await committed(async_pg_engine) == (0, 0)
    assert await run(started, bill) is Outcome.PROCESSED
    assert await committed(async_pg_engine) == (1, 1)


async def test_a_handler_that_blocks_its_thread_is_left_behind_and_can_commit_nothing(
    started: Threads, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool, "GRACE_SECONDS", 0.1)
    stuck = Stuck(timeout=0.2)
    with capture_logs() as said, pytest.raises(TimeoutError, match="its thread still runs") as caught:
        await run(started, stuck.handler)
    assert "self.gate.wait(60)" in "".join(caught.value.__notes__)
    assert [line["event"] for line in said] == ["a handler's thread went on after its timeout and is left behind"]
    assert await run(started, bill) is Outcome.PROCESSED, "its lock on the message is gone"
    stuck.gate.set()
    with capture_logs() as said:
        await true(lambda: said)
    assert [line["event"] for line in said] == ["a handler's thread that was left behind has ended"]
    assert stuck.ended.is_set()
    assert stuck.error is not None, "its connection is closed"
    await none_is_left(async_pg_engine)
    assert await committed(async_pg_engine) == (1, 1)


@pytest.mark.parametrize("in_database", [True, False])
async def test_what_is_cancelled_commits_nothing(started: Threads, async_pg_engine: AsyncEngine, in_database: bool):
    stuck = Stuck()
    task = asyncio.create_task(run(started, replace(handler_of(hangs), timeout=None) if in_database else stuck.handler))
    if in_database:
        await eventually_async(partial(backends, async_pg_engine, "wait_event = 'PgSleep'"))
    else:
        await true(stuck.waits.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await none_is_left(async_pg_engine)
    stuck.gate.set()
    await true(lambda: not started.left)
    assert await committed(async_pg_engine) == (0, 0)


async def test_waiting_for_a_duplicate_is_not_the_handlers_time(
    started: Threads, async_pg_engine: AsyncEngine, pg_engine: Engine
):
    @inbox_handler("Bill", timeout=0.2)
    def impatient(session: Session, event: Ordered) -> None:
        bill(session, event)

    with Session(pg_engine) as session:
        session.begin()
        inbox.run_once(session, MESSAGE, bill)
        waiting = asyncio.create_task(run(started, impatient))
        await eventually_async(partial(backends, async_pg_engine, "wait_event = 'transactionid'"))
        session.execute(text("SELECT pg_sleep(0.3)"))
        session.rollback()
    assert await waiting is Outcome.PROCESSED


async def test_if_too_many_threads_are_left_behind_the_next_one_waits(
    started: Threads, async_pg_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(pool, "MOST_LEFT", 1)
    stuck = Stuck(timeout=0.2)
    with pytest.raises(TimeoutError):
        await run(started, stuck.handler)
    with capture_logs() as said:
        waiting = asyncio.create_task(run(started, bill, OTHER))
        await true(lambda: said)
    assert "restart this process" in said[0]["event"]
    assert await committed(async_pg_engine) == (0, 0)
    stuck.gate.set()
    assert await waiting is Outcome.PROCESSED


async def test_a_session_that_outlives_its_handler_cannot_be_used(started: Threads):
    kept: list[Session] = []

    @inbox_handler("Keeps")
    def keeps(session: Session, event: Ordered) -> None:
        kept.append(session)

    assert await run(started, keeps) is Outcome.PROCESSED
    with pytest.raises(SQLAlchemyError, match="permanently closed"):
        kept[0].execute(text("SELECT 1"))


async def test_the_engine_beside_another_one_connects_as_that_one_does(postgresql_url: str):
    made = create_async_engine(
        postgresql_url,
        isolation_level="REPEATABLE READ",
        hide_parameters=True,
        connect_args={
            "application_name": "shop",
            "options": "-c search_path=elsewhere -c TimeZone=Asia/Tokyo",
            "prepare_threshold": None,
        },
    )
    beside = await engines.beside(made, pool_size=2)
    with beside.connect() as connection:
        told = [
            connection.execute(text(f"SHOW {name}")).scalar_one()
            for name in ("application_name", "search_path", "TimeZone", "transaction_isolation")
        ]
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.prepare_threshold is None
    assert told == ["shop", "elsewhere", "Asia/Tokyo", "repeatable read"]
    assert beside.hide_parameters
    beside.dispose()
    await made.dispose()


async def test_the_engine_beside_knows_every_host(postgresql_url: str):
    url = make_url(postgresql_url)
    both = url.set(host=None, port=None, query={"host": ("127.0.0.1:1", f"{url.host}:{url.port}")})
    made = create_async_engine(both)
    beside = await engines.beside(made, pool_size=2)
    with beside.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    parameters = beside.pool._creator.keywords  # type: ignore[attr-defined]
    assert (parameters["host"], parameters["port"]) == (f"127.0.0.1,{url.host}", f"1,{url.port}")
    assert "hostaddr" not in parameters
    beside.dispose()
    await made.dispose()
