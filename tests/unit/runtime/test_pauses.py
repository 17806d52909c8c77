"""Pauses as rows, and a process that looks for its own, on SQLite."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import ConfigurationError, tables
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.runtime.pauses import Pause, read_pauses
from outboxkit.runtime.pauses.watch import PauseWatch
from outboxkit.runtime.workers import CONSUMER, RELAY
from tests.support.polling import eventually_async
from tests.unit.shop import rows

HOUR = timedelta(hours=1)


def begin(engine: Engine, process: str = RELAY, name: str = "default", **more: object) -> Pause:
    with engine.begin() as connection:
        return pause_process(connection, process, name, **({"why": "a move", "by": "ada"} | more))


def end(engine: Engine, process: str = RELAY, name: str = "default") -> Pause | None:
    with engine.begin() as connection:
        return resume_process(connection, process, name, by="bob")


def make_old(engine: Engine) -> None:
    """The database's clock cannot be turned on, so the pauses' time is turned back."""
    with engine.begin() as connection:
        old = datetime.now(UTC) - HOUR
        connection.execute(update(tables.pause).values(since=old - HOUR, until=old))


def current(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        return [(pause.process, pause.name) for pause in read_pauses(connection)]


def test_a_pause_lasts_until_somebody_ends_it(engine: Engine):
    begun = begin(engine)
    assert (begun.until, begun.why, begun.paused_by) == (None, "a move", "ada")
    assert abs(datetime.now(UTC) - begun.since) < HOUR
    begin(engine, CONSUMER, "billing")
    assert current(engine) == [(CONSUMER, "billing"), (RELAY, "default")]
    assert end(engine) == begun
    assert current(engine) == [(CONSUMER, "billing")]
    assert end(engine) is None


def test_a_pause_ends_by_itself_by_the_database_s_clock(engine: Engine):
    begun = begin(engine, lasts=HOUR)
    assert begun.until == begun.since + HOUR
    assert current(engine) == [(RELAY, "default")]
    make_old(engine)
    assert current(engine) == []
    assert end(engine) is None, "there was nothing to end any more"


def test_paused_again_it_began_when_it_did(engine: Engine):
    first = begin(engine, lasts=HOUR)
    again = begin(engine, why="it takes longer", by="bob")
    assert (again.since, again.until, again.why, again.paused_by) == (first.since, None, "it takes longer", "bob")
    make_old(engine)
    later = begin(engine)
    assert later.since >= first.since, "the first one was over, and this is another one"


@pytest.mark.parametrize(
    ("process", "name", "why", "said"),
    [
        ("pruner", "q", "w", "'relay' and 'consumer' are accepted"),
        (CONSUMER, "", "w", "a name of 1 to 255 bytes is accepted"),
        (CONSUMER, "q" * 256, "w", "a name of 1 to 255 bytes is accepted"),
        (CONSUMER, "nul\0", "w", "a name of 1 to 255 bytes is accepted"),
        (RELAY, "default", " ", "a reason is needed"),
    ],
)
def test_bad_input_is_refused(engine: Engine, process: str, name: str, why: str, said: str):
    with pytest.raises(ConfigurationError, match=said):
        begin(engine, process, name, why=why)
    assert current(engine) == []


def test_no_row_is_left_by_a_transaction_that_is_rolled_back(engine: Engine, database_url: str):
    with engine.connect() as connection:
        pause_process(connection, RELAY, "default", why="w", by="ada")
        connection.rollback()
    assert rows(database_url, tables.pause) == rows(database_url, tables.audit) == []


async def test_a_watch_sees_the_pause_of_its_own_process(engine: Engine, async_engine: AsyncEngine):
    watch = PauseWatch(async_engine, CONSUMER, "billing")
    begin(engine, CONSUMER, "mails")
    begin(engine, RELAY, "billing")
    await watch.poll()
    assert watch.current is None
    begun = begin(engine, CONSUMER, "billing")
    await watch.poll()
    assert watch.current == begun
    end(engine, CONSUMER, "billing")
    await watch.poll()
    assert watch.current is None


async def test_a_watch_looks_again_and_again(engine: Engine, async_engine: AsyncEngine):
    watch = PauseWatch(async_engine, RELAY, "default")
    async with watch.watching():
        begin(engine)
        await eventually_async(lambda: asyncio.sleep(0, watch.current), lambda pause: pause is not None)
        end(engine)
        await eventually_async(lambda: asyncio.sleep(0, watch.current), lambda pause: pause is None)


async def test_a_watch_that_cannot_look_says_so_once_and_keeps_what_it_saw(engine: Engine, async_engine: AsyncEngine):
    watch = PauseWatch(async_engine, RELAY, "default")
    begun = begin(engine)
    await watch.poll()
    with engine.begin() as connection:
        tables.pause.drop(connection)
    with capture_logs() as said:
        async with watch.watching():
            await eventually_async(lambda: asyncio.sleep(0, said), lambda lines: len(lines) >= 2)
            assert watch.current == begun
            with engine.begin() as connection:
                tables.pause.create(connection)
            await eventually_async(lambda: asyncio.sleep(0, watch.current), lambda pause: pause is None)
            before = len(said)
            with engine.begin() as connection:
                tables.pause.drop(connection)
            await eventually_async(lambda: asyncio.sleep(0, said), lambda lines: len(lines) > before)
    first, *again = [line["event"] for line in said[:before]]
    assert first == said[before]["event"] == "pauses cannot be seen; outboxkit doctor names the cause"
    assert "outboxkit_pause" in said[0]["error"]
    assert set(again) == {"the query for a pause failed"}


async def test_a_halt_is_set_by_a_stop_and_by_a_pause(engine: Engine, async_engine: AsyncEngine):
    watch, stop = PauseWatch(async_engine, RELAY, "default"), asyncio.Event()
    async with watch.stop_or_pause(stop) as halt:
        stop.set()
        await halt.wait()
        assert not halt.is_pause
    begin(engine)
    await watch.poll()
    async with watch.stop_or_pause(asyncio.Event()) as halt:
        await halt.wait()
        assert halt.is_pause


async def test_the_wait_for_the_end_ends_with_the_pause_or_with_a_stop(engine: Engine, async_engine: AsyncEngine):
    watch, stop = PauseWatch(async_engine, CONSUMER, "billing"), asyncio.Event()
    with capture_logs() as said:
        await watch.wait_for_end(stop)  # there is none
        begin(engine, CONSUMER, "billing", lasts=HOUR)
        await watch.poll()
        waiting = asyncio.create_task(watch.wait_for_end(stop))
        done, _ = await asyncio.wait((waiting,), timeout=0)
        assert not done
        stop.set()
        await waiting
        waiting = asyncio.create_task(watch.wait_for_end(asyncio.Event()))
        end(engine, CONSUMER, "billing")
        await watch.poll()
        await waiting
    assert [line["event"] for line in said] == ["consumer paused", "consumer paused", "consumer resumed"]
    assert {"queue": "billing", "by": "ada", "why": "a move"}.items() <= said[0].items()
    assert "until" in said[0]
    assert "paused_since" in said[-1]
