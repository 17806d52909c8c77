"""Requests done once and calls made once, with the application's own sessions: every driver, every kind of session."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from psycopg.rows import dict_row
from sqlalchemy import Engine, event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

import outboxkit
from outboxkit import effects, inbox, inbox_handler, outbox, tables
from outboxkit.brokers import Verdict
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.errors import LeaseLost
from outboxkit.errors.sqlstates import NO_END, sqlstate_of
from outboxkit.http import ledger
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.http.flask import Idempotent as FlaskIdempotent
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay
from outboxkit.http.steps import Steps
from outboxkit.message import Message
from tests.integration.database.drivers import KINDS, ONE_OF_EACH, Driver, done, names, using
from tests.support.ledger_requests import ASKED, CREATED, IN_STEPS, OTHER

KEY = {"Idempotency-Key": "k-1"}


@outboxkit.event("Placed")
@dataclass(frozen=True)
class Placed:
    number: int


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


def payloads(engine: Engine) -> list[bytes]:
    with engine.connect() as connection:
        return list(connection.scalars(select(tables.outbox.c.payload)))


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


@pytest.mark.parametrize("pair", [pair for pair in KINDS if pair[1] is scoped_session], ids=names)
async def test_the_flask_door(pair: Any, postgresql_url: str, pg_engine: Engine):
    async with using(postgresql_url, pair) as driver:
        web, sessions = Flask(__name__), driver.session()
        web.teardown_appcontext(lambda _: sessions.remove())

        @web.post("/orders")
        @FlaskIdempotent(session=sessions, principal=lambda: "ann")
        def place() -> Any:
            outbox.add(sessions, Placed(1))
            return b"\0\xff", 201

        answers = [web.test_client().post("/orders", headers=KEY) for _ in range(2)]
    assert [(answer.status_code, answer.data) for answer in answers] == [(201, b"\0\xff")] * 2
    assert payloads(pg_engine) == [b'{"number":1}']


async def test_the_fastapi_door(plain: Driver, pg_engine: Engine):
    def get_session() -> Iterator[Session]:
        with plain.sessions() as session:
            yield session

    async def get_async_session() -> AsyncIterator[AsyncSession]:
        async with plain.sessions() as session:
            yield session

    dependency = get_async_session if plain.is_async else get_session
    kind = AsyncSession if plain.is_async else Session
    web = FastAPI()
    web.router.route_class = IdempotentRoute
    rule = Idempotent(session=dependency, principal=lambda: "ann")

    @web.post("/orders", status_code=201, dependencies=[Depends(rule)])
    async def place(session: Annotated[kind, Depends(dependency)]) -> dict[str, int]:  # type: ignore[valid-type]
        outbox.add(session, Placed(1))
        return {"order": 1}

    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop") as client:
        answers = [await client.post("/orders", headers=KEY) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(201, b'{"order":1}')] * 2
    assert answers[1].headers["Idempotency-Replayed"] == "true"
    assert payloads(pg_engine) == [b'{"number":1}']


@pytest.mark.parametrize("pair", [pair for pair in ONE_OF_EACH if pair[1] is AsyncSession], ids=names)
async def test_the_relays_own_handlers(pair: Any, postgresql_url: str, pg_engine: Engine):
    @inbox_handler("Answer")
    async def answer(session: AsyncSession, event: Placed) -> None:
        outbox.add(session, event)

    async with using(postgresql_url, pair) as driver:
        publisher = DirectPublisher(driver.engine, [inbox.handler_of(answer)])
        for _ in range(2):
            (receipt,) = await publisher.publish([Message(id="m", type="Placed", payload=b'{"number":2}')])
            assert receipt.verdict is Verdict.CONFIRMED
        await publisher.close()
    assert payloads(pg_engine) == [b'{"number":2}']
