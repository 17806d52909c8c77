"""Requests done once and calls made once, with the application's own sessions: every driver, every kind of session."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import effects
from outboxkit.errors import LeaseLost
from outboxkit.errors.sqlstates import NO_END, sqlstate_of
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay
from outboxkit.http.steps import Steps
from tests.integration.database.drivers import KINDS, ONE_OF_EACH, Driver, done, names, using
from tests.support.ledger_requests import ASKED, CREATED, IN_STEPS, OTHER


@pytest.fixture(params=KINDS, ids=names)
async def driver(request: pytest.FixtureRequest, postgresql_url: str) -> AsyncIterator[Driver]:
    async with using(postgresql_url, request.param) as driver:
        yield driver


@pytest.fixture(params=ONE_OF_EACH, ids=names)
async def plain(request: pytest.FixtureRequest, postgresql_url: str) -> AsyncIterator[Driver]:
    """With sessions that are not scoped."""
    async with using(postgresql_url, request.param) as driver:
        yield driver


def answered(session: Session, asked: dict[str, Any]) -> Any:
    fresh = ledger.begin(session, **asked)
    assert isinstance(fresh, Fresh)
    ledger.complete(session, fresh, CREATED)
    return fresh


async def test_a_duplicate_gets_the_answer_byte_for_byte(driver: Driver):
    assert isinstance(await driver.within(answered, ASKED), Fresh)
    again = await driver.within(ledger.begin, **ASKED)
    assert isinstance(again, Replay)
    assert again.response == CREATED
    assert await driver.within(ledger.begin, **OTHER) == Mismatch()


async def test_while_the_first_is_open_others_are_told_so(plain: Driver):
    first, second = plain.session(), plain.session()
    fresh = await plain.on(first, ledger.begin, **ASKED)
    assert await plain.on(second, ledger.begin, **OTHER) == Mismatch()
    assert await plain.on(second, ledger.begin, **ASKED) == InProgress()
    await plain.on(first, ledger.complete, fresh, CREATED)
    await done(first.commit())
    assert isinstance(await plain.on(second, ledger.begin, **ASKED), Replay)
    await done(first.close())
    await done(second.close())


def test_an_application_that_listens_to_its_statements_sees_those_of_the_request(pg_engine: Engine):
    seen: list[str] = []
    event.listen(pg_engine, "before_cursor_execute", lambda *told: seen.append(told[2].split()[0]))
    with Session(pg_engine) as session:
        answered(session, ASKED)
        session.commit()
    assert seen == ["INSERT", "UPDATE"]


def test_an_application_may_read_its_rows_as_dicts(pg_engine: Engine):
    event.listen(pg_engine, "connect", lambda driver, _: setattr(driver, "row_factory", dict_row))
    with Session(pg_engine) as session:
        fresh = answered(session, ASKED)
    assert fresh.expires_at.utcoffset() == timedelta(0)


async def test_the_database_refuses_a_commit_before_the_answer(plain: Driver):
    session = plain.session()
    await plain.on(session, ledger.begin, **ASKED)
    with pytest.raises(DBAPIError) as raised:
        await done(session.execute(text("COMMIT")))
    assert sqlstate_of(raised.value) == NO_END
    await done(session.close())
    assert isinstance(await plain.within(ledger.begin, **IN_STEPS), Fresh)


async def test_a_run_with_a_lease_is_taken_over_and_fenced(plain: Driver):
    first = await plain.within(ledger.begin, **IN_STEPS)
    told = await plain.within(ledger.begin, **IN_STEPS)
    assert isinstance(told, InProgress)
    assert timedelta(0) < told.after <= IN_STEPS["lease"]
    await plain.within(ledger.release, first)
    second = await plain.within(ledger.begin, **IN_STEPS)
    assert isinstance(second, Fresh)
    with pytest.raises(LeaseLost):
        await plain.within(ledger.complete, first, CREATED)
    await plain.within(ledger.complete, second, CREATED)
    assert isinstance(await plain.within(ledger.begin, **IN_STEPS), Replay)


@pytest.mark.parametrize("pair", [pair for pair in ONE_OF_EACH if pair[1] is AsyncSession], ids=names)
async def test_finished_steps_are_found_by_the_next_run(pair: Any, postgresql_url: str):
    async with using(postgresql_url, pair) as driver:
        first = await driver.within(ledger.begin, **IN_STEPS)

        async def charge() -> dict[str, int]:
            return {"charged": 5}

        assert await Steps(driver.sessions, first).step("charge", charge) == {"charged": 5}
        await driver.within(ledger.release, first)
        second = await driver.within(ledger.begin, **IN_STEPS)
        assert Steps(driver.sessions, second).finished == {"charge"}


async def test_a_call_is_made_once(plain: Driver):
    made: list[int] = []

    def call() -> Any:
        made.append(1)
        return {"sent": len(made)}

    async def call_async() -> Any:
        return call()

    for outcome in ("made", "remembered"):
        it = effects.once(plain.sessions, "k", call_async if plain.is_async else call, on_unknown="skip")
        assert await done(it) == effects.Effect(outcome, {"sent": 1})


async def test_a_call_that_may_have_been_made_is_unknown(plain: Driver):
    def call() -> None:
        raise TimeoutError

    async def call_async() -> None:
        call()

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await done(effects.once(plain.sessions, "k", call_async if plain.is_async else call, on_unknown="repeat"))
    skipped = await done(effects.once(plain.sessions, "k", call_async if plain.is_async else call, on_unknown="skip"))
    assert skipped.outcome == "skipped"
