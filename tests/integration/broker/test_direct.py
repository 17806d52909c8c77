"""A relay and handlers in one process with no broker between, on PostgreSQL and on SQLite."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Message, ids, inbox_handler, outbox, tables
from outboxkit.brokers import Verdict
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.inbox import handler_of
from outboxkit.operators.deadletters import DeadLetters, Resolved, Selection
from outboxkit.operators.deadletters.refusal import ReplayRules
from outboxkit.relay import Drained, Relay, RelayPolicy
from outboxkit.runtime import compose, process, settings
from tests.integration.consumer.running_consumer import Billed, Ordered
from tests.integration.relay.recording import QUICK, running
from tests.support.night import by_day_on
from tests.support.polling import eventually_async

MILLISECOND = timedelta(milliseconds=1)
BRIEF = RelayPolicy(max_attempts=3, backoffs={Verdict.REJECTED: QUICK})


@inbox_handler("Bill")
async def bill(session: AsyncSession, event: Ordered) -> None:
    await session.execute(text("INSERT INTO done VALUES ('billed', :number)"), {"number": event.number})
    outbox.add(session, Billed(event.number), key="bills")


@inbox_handler("File")
def file(session: Session, event: Billed, message: Message) -> None:
    session.execute(text("INSERT INTO done VALUES (:caused, :number)"), {"caused": "filed", "number": event.number})
    assert message.causation_id is not None


@pytest.fixture(autouse=True)
def _done(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE done (what TEXT, number INTEGER)"))


def add(engine: Engine, *numbers: int, **options: Any) -> None:
    with Session(engine) as session, session.begin():
        for number in numbers:
            outbox.add(session, Ordered(number), **options)


def done(engine: Engine) -> list[tuple[str, int]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT what, number FROM done"))]


def counted(engine: Engine) -> list[int]:
    """Messages that wait, that were handled, and that were given up."""
    with engine.connect() as connection:
        every = (tables.outbox, tables.inbox, tables.dead_letter)
        return [connection.execute(select(func.count()).select_from(table)).scalar_one() for table in every]


@pytest.fixture
async def relay_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = process.relay_engine(database_url, publish_timeout=timedelta(seconds=20))
    yield engine
    await engine.dispose()


@pytest.fixture
def made(relay_engine: AsyncEngine, async_engine: AsyncEngine) -> Callable[..., Relay]:
    """Makes relays that hand messages to these functions."""

    def make(*functions: Callable[..., Any], **options: Any) -> Relay:
        publisher = DirectPublisher(async_engine, [handler_of(each) for each in functions], **options)
        return Relay(relay_engine, publisher, policy=BRIEF, poll_interval=5 * MILLISECOND)

    return make


async def drained(relay: Relay) -> Drained:
    return await relay.drain(asyncio.Event())


async def test_what_handlers_add_is_handled_too_in_the_order_of_its_key(engine: Engine, made: Callable[..., Relay]):
    add(engine, *range(12))
    summary = await drained(made(bill, file))
    assert (summary.published, summary.is_complete) == (24, True)
    assert Counter(done(engine)) == Counter((what, number) for what in ("billed", "filed") for number in range(12))
    in_order = [[number for each, number in done(engine) if each == what] for what in ("billed", "filed")]
    assert in_order[0] == in_order[1]
    assert counted(engine) == [0, 24, 0]


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_collision_runs_again_at_once_and_is_no_failure(
    pg_engine: Engine, async_pg_engine: AsyncEngine, in_thread: bool
):
    """As at a consumer. The relay gives up after one failure."""
    calls = Counter[str]()
    collides = text("DO $$ BEGIN RAISE EXCEPTION 'it collided' USING ERRCODE = '40001'; END $$")

    @inbox_handler("Collides")
    def in_its_thread(session: Session, event: Ordered) -> None:
        session.execute(text("INSERT INTO done VALUES ('collided', :number)"), {"number": event.number})
        calls["all"] += 1
        if calls["all"] < 3:
            session.execute(collides)

    @inbox_handler("Collides")
    async def in_the_loop(session: AsyncSession, event: Ordered) -> None:
        await session.run_sync(in_its_thread, event)

    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS done (what TEXT, number INTEGER)"))
    add(pg_engine, 1)
    publisher = DirectPublisher(async_pg_engine, [handler_of(in_its_thread if in_thread else in_the_loop)])
    summary = await Relay(async_pg_engine, publisher, policy=RelayPolicy(max_attempts=1)).drain(asyncio.Event())
    assert (summary.published, summary.dead, calls["all"]) == (1, {}, 3)
    assert done(pg_engine) == [("collided", 1)]


async def test_collisions_do_not_add_up_beyond_the_timeout(pg_engine: Engine, async_pg_engine: AsyncEngine):
    calls = Counter[str]()

    @inbox_handler("Collides")
    async def collides(session: AsyncSession, event: Ordered) -> None:
        calls["all"] += 1
        await session.execute(text("SELECT pg_sleep(0.6)"))
        await session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'it collided' USING ERRCODE = '40001'; END $$"))

    add(pg_engine, 1)
    publisher = DirectPublisher(async_pg_engine, [handler_of(collides)], timeout=timedelta(seconds=1))
    summary = await Relay(async_pg_engine, publisher, policy=RelayPolicy(max_attempts=1)).drain(asyncio.Event())
    assert list(summary.dead) == ["Ordered"]
    assert calls["all"] <= 2


async def test_what_fails_again_and_again_is_a_dead_letter_and_can_be_replayed(
    engine: Engine, async_engine: AsyncEngine, made: Callable[..., Relay]
):
    @inbox_handler("Broken")
    def broken(session: Session, event: Ordered) -> None:
        raise RuntimeError("never")

    @inbox_handler("Broken")
    def repaired(session: Session, event: Ordered) -> None:
        session.execute(text("INSERT INTO done VALUES ('repaired', :number)"), {"number": event.number})

    add(engine, 1, 2, key="order-1")
    async with running(made(bill, broken, file)):
        await eventually_async(lambda: asyncio.sleep(0, counted(engine)), lambda found: found == [1, 2, 1])
    with engine.connect() as connection:
        letter = connection.execute(select(tables.dead_letter)).one()
    assert (letter.side, letter.reason, letter.attempts, letter.parked) == ("outbox", "rejected", 3, True)
    assert letter.error == "rejected: Broken: RuntimeError: never"
    assert done(engine) == [("billed", 1), ("filed", 1)]

    await DeadLetters(async_engine).resolve("replayed", Selection(), asyncio.Event(), Resolved())
    await drained(made(bill, repaired, file))
    handled = [(what, number) for number in (1, 2) for what in ("billed", "repaired", "filed")]
    assert Counter(done(engine)) == Counter(handled)
    assert counted(engine) == [0, 6, 1]


@by_day_on("sqlite")
async def test_a_message_that_is_too_old_is_set_aside_and_handled_once_it_is_accepted(
    engine: Engine, async_engine: AsyncEngine, made: Callable[..., Relay]
):
    retention = timedelta(days=1)
    relay = made(bill, file, retention=retention)
    add(engine, 1, message_id=ids.new(at=datetime.now(UTC) - 2 * retention), headers={"tenant": "north"})
    add(engine, 2)
    await drained(relay)
    with engine.connect() as connection:
        error = connection.execute(select(tables.dead_letter.c.error)).scalar_one()
    assert error.endswith(
        "A longer OUTBOXKIT_INBOX_RETENTION, the publisher's `retention`, accepts it, or `dead replay --accept-stale`"
    )
    assert counted(engine) == [0, 2, 1]
    letters = DeadLetters(async_engine, rules=ReplayRules(retention, accept_stale=True))
    await letters.resolve("replayed", Selection(), asyncio.Event(), Resolved())
    with engine.connect() as connection:
        assert b'"tenant":"north"' in connection.execute(select(tables.outbox.c.headers)).scalar_one()
    await drained(relay)
    assert Counter(done(engine)) == Counter((what, number) for what in ("billed", "filed") for number in (1, 2))


@by_day_on("sqlite")
async def test_an_outage_of_the_handlers_database_is_called_so(engine: Engine, made: Callable[..., Relay]):
    @inbox_handler("Away")
    async def away(session: AsyncSession, event: Ordered) -> None:
        raise OperationalError("INSERT", {}, sqlite_busy())

    add(engine, 1)
    with capture_logs() as said, pytest.raises(BrokerUnavailable) as raised:
        await made(away).drain(asyncio.Event(), patience=300 * MILLISECOND)
    warnings = {line["event"] for line in said if line["log_level"] == "warning"}  # none if the first try took so long
    assert warnings <= {"database is away, waiting"}
    text, _ = compose.explain(raised.value)
    assert text.startswith("the database is away: ")
    assert "Has another process a transaction open in this file" in text
    assert counted(engine) == [1, 0, 0]


def sqlite_busy() -> sqlite3.OperationalError:
    """As a file raises it that another program has locked for longer than SQLite waits."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


async def test_a_relay_of_settings_works_with_it_on_either_database(
    engine: Engine, async_engine: AsyncEngine, database_url: str
):
    chosen = settings.load({"database_url": database_url})
    add(engine, 1)
    publisher = DirectPublisher(async_engine, [handler_of(bill), handler_of(file)])
    async with compose.relay(chosen, publisher=publisher) as relay:
        assert (await drained(relay)).published == 2
    assert counted(engine) == [0, 2, 0]
