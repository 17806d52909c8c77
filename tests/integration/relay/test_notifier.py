"""An idle relay is woken by a commit, costs next to nothing, and finds by itself what no notification announced.

If a test is about notifications, every poll is an hour away: a relay that wakes was woken.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.database.session_names import RELAY_LISTENER
from outboxkit.relay import notifier as module
from outboxkit.relay.notifier import Notifier
from outboxkit.runtime import process
from tests.support.pages import libpq
from tests.support.polling import eventually, eventually_async

HOUR = timedelta(hours=1)
INSERT = (
    "INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type{}) VALUES ('m', 'T', '', '', ''{})"
)
LISTENERS = "SELECT count(*) FROM outboxkit_listener"
CONNECTIONS = f"FROM pg_stat_activity WHERE application_name = '{RELAY_LISTENER}' AND datname = current_database()"

Writer = psycopg.Connection[Any]


@pytest.fixture
async def relay_engine(postgresql_url: str) -> AsyncIterator[AsyncEngine]:
    made = process.engine(postgresql_url, name="relay")
    yield made
    await made.dispose()


@pytest.fixture
async def idle(relay_engine: AsyncEngine) -> AsyncIterator[Notifier]:
    """Waits for an hour unless it is notified."""
    made = Notifier(relay_engine, poll_interval=HOUR, fallback_poll=HOUR)
    yield made
    await made.close()


@pytest.fixture
def writer(postgresql_url: str) -> Iterator[Writer]:
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        yield connection


def ask(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar()


async def is_listening(engine: Engine, waits: int = 1, *, since: datetime) -> None:
    """Wait until so many relays are registered, and have looked after that and after `since`, by the server's clock."""
    looked = (
        f"SELECT count(*) {CONNECTIONS} AND state = 'idle' AND query LIKE 'SELECT (SELECT min(%'"
        f" AND query_start > '{since.isoformat()}'"
    )

    def read() -> tuple[int, int]:
        return ask(engine, LISTENERS), ask(engine, looked)

    await eventually_async(lambda: asyncio.to_thread(read), lambda found: found == (waits, waits))


async def listening(notifier: Notifier, engine: Engine) -> tuple[asyncio.Task[None], asyncio.Event]:
    """A wait that has begun: it has looked, and what a wait before it saw does not count."""
    since = ask(engine, "SELECT clock_timestamp()")
    stop = asyncio.Event()
    waiting = asyncio.create_task(notifier.wait(stop))
    await is_listening(engine, since=since)
    assert not waiting.done()
    return waiting, stop


async def test_a_commit_wakes_all_who_listen(
    idle: Notifier, relay_engine: AsyncEngine, pg_engine: Engine, writer: Writer
):
    another = Notifier(relay_engine, poll_interval=HOUR, fallback_poll=HOUR)
    stop, since = asyncio.Event(), ask(pg_engine, "SELECT clock_timestamp()")
    waiting = [asyncio.create_task(notifier.wait(stop)) for notifier in (idle, another)]
    await is_listening(pg_engine, 2, since=since)
    writer.execute(INSERT.format("", ""))
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    await another.close()
    assert ask(pg_engine, LISTENERS) == 1


async def test_stop_ends_the_wait_and_close_removes_the_row(idle: Notifier, pg_engine: Engine):
    waiting, stop = await listening(idle, pg_engine)
    stop.set()
    async with asyncio.timeout(60):
        await waiting
    await idle.close()
    assert ask(pg_engine, LISTENERS) == 0
    eventually(lambda: ask(pg_engine, f"SELECT count(*) {CONNECTIONS}"), lambda count: count == 0)


async def test_a_row_whose_trigger_ran_before_the_registration_is_found_by_the_fallback_poll(
    relay_engine: AsyncEngine, pg_engine: Engine, writer: Writer
):
    notifier = Notifier(relay_engine, poll_interval=HOUR, fallback_poll=timedelta(milliseconds=100))
    with writer.transaction():
        writer.execute(INSERT.format("", ""))
        waiting, _ = await listening(notifier, pg_engine)
    async with asyncio.timeout(60):
        await waiting
    await notifier.close()


async def test_an_idle_relay_costs_less_than_two_statements_a_second(relay_engine: AsyncEngine):
    """By the clock that is injected: ten minutes of waiting, of which every wait ends at once."""
    executed: list[str] = []

    @event.listens_for(relay_engine.sync_engine, "before_cursor_execute")
    def _count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        executed.append(statement)

    waited = 0.0

    class Hurried(module.Listener):
        async def wait_for_notification(self, stop: asyncio.Event, seconds: float) -> bool:
            nonlocal waited
            waited += seconds
            return False

    notifier = Notifier(relay_engine, poll_interval=HOUR, monotonic=lambda: waited)
    notifier._listener = Hurried(relay_engine, monotonic=lambda: waited)
    turns = 0
    while waited < 600:
        await notifier.wait(asyncio.Event())
        turns += 1
    await notifier.close()
    per_turn = 8  # what a relay's own turn costs, generously
    assert 300 < len(executed) + turns * per_turn < 2 * 600


async def test_nothing_is_notified_for_a_burst(relay_engine: AsyncEngine, pg_engine: Engine):
    now = 0.0
    notifier = Notifier(relay_engine, poll_interval=HOUR, fallback_poll=HOUR, monotonic=lambda: now)
    waiting, stop = await listening(notifier, pg_engine)
    stop.set()
    await waiting
    for _ in range(module.BURST_TURNS):
        assert ask(pg_engine, LISTENERS) == 1
        await notifier.busy()
    assert ask(pg_engine, LISTENERS) == 0
    await notifier.wait(asyncio.Event())  # a short pause
    assert ask(pg_engine, LISTENERS) == 0
    now += module.BURST_SECONDS
    waiting, stop = await listening(notifier, pg_engine)
    stop.set()
    await waiting
    await notifier.close()


async def test_a_lost_connection_ends_the_wait_and_is_made_anew(idle: Notifier, pg_engine: Engine, writer: Writer):
    for _ in range(2):
        waiting, _ = await listening(idle, pg_engine)
        writer.execute(f"SELECT pg_terminate_backend(pid) {CONNECTIONS}")
        async with asyncio.timeout(60):
            await waiting
    waiting, _ = await listening(idle, pg_engine)
    writer.execute(INSERT.format("", ""))
    async with asyncio.timeout(60):
        await waiting
