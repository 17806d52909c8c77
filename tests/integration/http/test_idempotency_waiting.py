"""`wait`: a duplicate that waits for the first one's end, on PostgreSQL; and sessions that see the past."""

import asyncio
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Outcome, Replay
from tests.support.ledger_requests import ASKED, CREATED, OTHER, begun, count, done, expire, told, waiting
from tests.support.polling import eventually, eventually_async

LONG = timedelta(minutes=1)
PATIENT = ASKED | {"wait": LONG}


@pytest.fixture
def wide(postgresql_url: str) -> Any:
    made = create_engine(postgresql_url, pool_size=30)
    yield made
    made.dispose()


def serve(engine: Engine, asked: dict[str, Any]) -> Outcome:
    with Session(engine) as session:
        outcome = ledger.begin(session, **asked)
        if isinstance(outcome, Fresh):
            session.execute(insert(tables.attempt).values(queue="q", message_id=outcome.token))
            ledger.complete(session, outcome, CREATED)
            session.commit()
        return outcome


def in_the_back(pool: ThreadPoolExecutor, engine: Engine, asked: dict[str, Any]) -> "Future[Outcome]":
    found = pool.submit(serve, engine, asked)
    eventually(lambda: waiting(engine))
    return found


def test_who_waits_gets_the_answer(wide: Engine):
    with ThreadPoolExecutor(1) as pool, Session(wide) as session:
        fresh = ledger.begin(session, **ASKED)
        second = in_the_back(pool, wide, PATIENT)
        ledger.complete(session, fresh, CREATED)
        session.commit()
        assert second.result(60) == Replay(CREATED, fresh.expires_at)


def test_who_waits_is_fresh_after_a_rollback(wide: Engine):
    with ThreadPoolExecutor(1) as pool, Session(wide) as session:
        ledger.begin(session, **ASKED)
        second = in_the_back(pool, wide, PATIENT)
        session.rollback()
        assert isinstance(second.result(60), Fresh)
    assert isinstance(told(wide), Replay)


def test_all_who_wait_get_the_one_answer(wide: Engine):
    """The holder gives up, one of those who wait does it, and the others get what this one answers."""
    with ThreadPoolExecutor(20) as pool, Session(wide) as session:
        ledger.begin(session, **ASKED)
        outcomes = [pool.submit(serve, wide, PATIENT) for _ in range(20)]
        eventually(lambda: waiting(wide), lambda found: found == 20)
        session.rollback()
        kinds = Counter(type(outcome.result(60)) for outcome in outcomes)
    assert kinds == {Fresh: 1, Replay: 19}
    with wide.connect() as connection:
        assert connection.execute(select(func.count()).select_from(tables.attempt)).scalar_one() == 1


def test_who_got_the_answer_holds_up_nobody(wide: Engine):
    with ThreadPoolExecutor(1) as pool, Session(wide) as session, Session(wide) as slow:
        fresh = ledger.begin(session, **ASKED)
        second = pool.submit(ledger.begin, slow, **PATIENT)
        eventually(lambda: waiting(wide))
        ledger.complete(session, fresh, CREATED)
        session.commit()
        assert isinstance(second.result(60), Replay)
        expire(wide)
        assert isinstance(told(wide, OTHER), Fresh)


def test_a_mismatch_does_not_wait(wide: Engine):
    with Session(wide) as session:
        ledger.begin(session, **ASKED)
        assert told(wide, OTHER | {"wait": LONG}) == Mismatch()


def test_who_waited_in_vain_goes_on_with_its_transaction_as_it_was(wide: Engine):
    with Session(wide) as holder, Session(wide) as session:
        ledger.begin(holder, **ASKED)
        session.execute(text("SET LOCAL lock_timeout = '1234ms'"))
        session.execute(insert(tables.attempt).values(queue="q", message_id="m"))
        assert ledger.begin(session, **ASKED | {"wait": timedelta(milliseconds=50)}) == InProgress()
        assert session.execute(text("SHOW lock_timeout")).scalar_one() == "1234ms"
        session.commit()
        assert session.execute(select(func.count()).select_from(tables.attempt)).scalar_one() == 1
        assert session.execute(text("SHOW lock_timeout")).scalar_one() == "0"


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_lock_timeout_is_the_sessions_own_after_waiting(wide: Engine, ends: str):
    with ThreadPoolExecutor(1) as pool, Session(wide) as holder, Session(wide) as session:
        session.execute(text("SET lock_timeout = '7777ms'"))
        fresh = ledger.begin(holder, **ASKED)
        second = pool.submit(ledger.begin, session, **PATIENT)
        eventually(lambda: waiting(wide))
        ledger.complete(holder, fresh, CREATED)
        getattr(holder, ends)()
        assert isinstance(second.result(60), Replay if ends == "commit" else Fresh)
        assert session.execute(text("SHOW lock_timeout")).scalar_one() == "7777ms"
        session.rollback()
        session.execute(text("RESET lock_timeout"))
        session.commit()


def test_two_that_wait_for_each_other_do_not_hang(wide: Engine):
    """Two keys in two orders: the server ends one wait, which is told that the other is busy."""
    with ThreadPoolExecutor(2) as pool, Session(wide) as one, Session(wide) as other:
        ledger.begin(one, **ASKED)
        ledger.begin(other, **ASKED | {"key": "k-2"})
        crossing = [
            pool.submit(ledger.begin, one, **PATIENT | {"key": "k-2"}),
            pool.submit(ledger.begin, other, **PATIENT),
        ]
        eventually(lambda: any(each.done() for each in crossing))
        (told_off,) = [number for number, each in enumerate(crossing) if each.done()]
        assert crossing[told_off].result() == InProgress()
        loser, winner = (one, other) if told_off == 0 else (other, one)
        assert loser.execute(text("SELECT 1")).scalar_one() == 1  # its transaction goes on
        loser.rollback()
        assert isinstance(crossing[1 - told_off].result(60), Fresh)
        winner.rollback()


async def test_the_event_loop_goes_on_while_one_waits(async_pg_engine: AsyncEngine, pg_engine: Engine):
    async with AsyncSession(async_pg_engine) as holder, AsyncSession(async_pg_engine) as session:
        fresh = await holder.run_sync(ledger.begin, **ASKED)
        second = asyncio.create_task(session.run_sync(ledger.begin, **PATIENT))
        await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine))
        await holder.run_sync(ledger.complete, fresh, CREATED)
        await holder.commit()
        assert await second == Replay(CREATED, fresh.expires_at)


async def test_who_is_cancelled_while_waiting_leaves_nothing(async_pg_engine: AsyncEngine, pg_engine: Engine):
    async with AsyncSession(async_pg_engine) as holder:
        await holder.run_sync(ledger.begin, **ASKED)
        async with AsyncSession(async_pg_engine) as session:
            second = asyncio.create_task(session.run_sync(ledger.begin, **PATIENT))
            await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine))
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine), lambda found: not found)
        await holder.rollback()
    assert isinstance(told(pg_engine), Fresh)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("wait", [timedelta(0), LONG])
def test_a_session_that_sees_the_past_is_told_so(wide: Engine, level: str, wait: timedelta):
    """It cannot see what was committed after it began: the database refuses, and nothing wrong is stored."""
    past = wide.execution_options(isolation_level=level)
    with Session(past) as session:
        session.execute(text("SELECT 1"))
        fresh = done(wide)
        with pytest.raises(OperationalError, match="could not serialize"):
            ledger.begin(session, **ASKED | {"wait": wait})
        session.rollback()
        assert ledger.begin(session, **ASKED) == Replay(CREATED, fresh.expires_at)
    assert count(wide) == 1


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_session_that_sees_the_past_waits_and_is_told_so(wide: Engine, level: str):
    past = wide.execution_options(isolation_level=level)
    with ThreadPoolExecutor(1) as pool, Session(wide) as holder:
        fresh = ledger.begin(holder, **ASKED)
        assert told(past) == InProgress()
        assert told(past, OTHER) == Mismatch()
        second = in_the_back(pool, past, PATIENT)
        ledger.complete(holder, fresh, CREATED)
        holder.commit()
        with pytest.raises(OperationalError, match="could not serialize"):
            second.result(60)
    assert serve(past, ASKED) == Replay(CREATED, fresh.expires_at)
    assert isinstance(serve(past, ASKED | {"key": "k-2"}), Fresh)


def test_on_sqlite_a_duplicate_waits_for_the_writer(sqlite_url: str):
    engine = create_engine(sqlite_url, connect_args={"timeout": 60})
    with ThreadPoolExecutor(1) as pool, Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        second = pool.submit(told, engine, ASKED)
        ledger.complete(session, fresh, CREATED)
        assert not second.done()
        session.commit()
        assert second.result(60) == Replay(CREATED, fresh.expires_at)
    engine.dispose()


def test_on_sqlite_wait_is_the_drivers(sqlite_url: str):
    engine = create_engine(sqlite_url, connect_args={"timeout": 0.05})
    with Session(engine) as session:
        ledger.begin(session, **ASKED)
        with pytest.raises(OperationalError, match="database is locked"):
            begun(engine, PATIENT)
    engine.dispose()
