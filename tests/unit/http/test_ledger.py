"""`begin`, `complete` and `release` on SQLite, one after the other; what two do at once is in tests/integration."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay, Response
from tests.support.ledger_requests import ASKED, CREATED, IN_STEPS, OK, OTHER, begun, count, done, row, told
from tests.unit.shop import effects


def test_an_error_of_a_missing_table_says_what_makes_it(engine: Engine):
    tables.idempotency.drop(engine)
    with pytest.raises(OperationalError) as failed:
        done(engine)
    assert "a table of outboxkit is missing: run `outboxkit migrate`" in failed.value.__notes__[0]


def test_a_key_is_the_callers_and_the_operations_own(engine: Engine):
    done(engine)
    for changed in ({"scope": "POST /payments"}, {"principal": "bob"}, {"principal": None}, {"key": "K-1"}):
        assert isinstance(told(engine, ASKED | changed), Fresh)


def test_a_long_principal_is_known_by_its_digest(engine: Engine):
    long = "x" * 256
    assert done(engine, ASKED | {"principal": long}).principal == long
    stored = row(engine).principal
    assert stored.startswith("sha256:")
    assert isinstance(told(engine, ASKED | {"principal": long}), Replay)
    for other in ("x" * 257, stored):
        assert isinstance(told(engine, ASKED | {"principal": other}), Fresh)


def test_the_work_commits_with_the_answer_or_not_at_all(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        session.execute(insert(effects).values(what="order"))
        with pytest.raises(TransactionRequired, match=r"'k-1'.* call ledger\.complete first"):
            session.commit()
        ledger.complete(session, fresh, CREATED)
        session.commit()
        session.execute(insert(effects).values(what="another"))
        session.commit()
    assert isinstance(told(engine), Replay)


def test_after_the_rollback_of_its_request_a_session_is_for_other_work(engine: Engine):
    """As an error handler of the application that keeps a note of what went wrong."""
    with Session(engine) as session:
        assert isinstance(ledger.begin_request(session, **ASKED), Fresh)
        ledger.roll_back(session)
        session.execute(insert(effects).values(what="a note"))
        session.commit()
    assert isinstance(told(engine), Fresh)


def test_every_request_of_a_transaction_needs_its_answer(engine: Engine):
    with Session(engine) as session:
        first, second = (ledger.begin(session, **ASKED | {"key": key}) for key in ("k-1", "k-2"))
        ledger.complete(session, first, OK)
        with pytest.raises(TransactionRequired, match="'k-2'"):
            session.commit()
        ledger.complete(session, second, OK)
        session.commit()
    assert count(engine) == 2


def test_the_same_request_twice_in_a_transaction_is_in_progress(engine: Engine):
    with Session(engine) as session:
        assert isinstance(ledger.begin(session, **ASKED), Fresh)
        assert ledger.begin(session, **ASKED) == InProgress()
        assert ledger.begin(session, **OTHER) == Mismatch()


def test_an_answer_that_comes_after_the_rollback_is_refused(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        session.rollback()
        for _ in ("outside", "in the next transaction"):
            with pytest.raises(TransactionRequired, match="is not open in this transaction"):
                ledger.complete(session, fresh, OK)
            session.execute(select(effects))
    assert count(engine) == 0


def test_an_answer_that_comes_twice_is_refused(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        ledger.complete(session, fresh, CREATED)
        with pytest.raises(TransactionRequired, match="has its answer"):
            ledger.complete(session, fresh, OK)
        session.commit()
        with pytest.raises(TransactionRequired, match="began in another one"):
            ledger.complete(session, fresh, OK)
    assert told(engine) == Replay(CREATED, fresh.expires_at)


def test_an_answer_whose_row_is_gone_is_refused(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        session.execute(delete(tables.idempotency))
        with pytest.raises(TransactionRequired, match="begin again"):
            ledger.complete(session, fresh, OK)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (Response("200"), ValueError),
        (Response(99), ValueError),
        (Response(600), ValueError),
        (Response(200, body="text"), TypeError),
        (Response(200, (("a", "\ud800"),)), ValueError),
    ],
)
def test_an_answer_that_cannot_be_kept_is_refused_and_the_run_stays_open(engine: Engine, response: Any, error: Any):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        with pytest.raises(error, match="response"):
            ledger.complete(session, fresh, response)
        ledger.complete(session, fresh, OK)
        session.commit()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"scope": ""}, ValueError),
        ({"scope": "x" * 256}, ValueError),
        ({"scope": None}, TypeError),
        ({"key": ""}, ValueError),
        ({"key": "x" * 256}, ValueError),
        ({"key": "a\0b"}, ValueError),
        ({"key": "\ud800"}, ValueError),
        ({"principal": ""}, ValueError),
        ({"principal": 7}, TypeError),
        ({"fingerprint": b"short"}, ValueError),
        ({"fingerprint": "a" * 32}, ValueError),
        ({"retention": timedelta(0)}, ConfigurationError),
        ({"retention": timedelta(days=-1)}, ConfigurationError),
        ({"retention": timedelta.max}, ConfigurationError),
        ({"retention": 3600}, ConfigurationError),
        ({"lease": timedelta(0)}, ConfigurationError),
        ({"lease": timedelta(hours=25)}, ConfigurationError),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_database_is(engine: Engine, changed: dict[str, Any], error: Any):
    with Session(engine) as session:
        with pytest.raises(error):
            ledger.begin(session, **ASKED | changed)
        assert not session.in_transaction()


def test_in_one_transaction_there_is_nothing_to_release(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        with pytest.raises(ConfigurationError, match="roll back"):
            ledger.release(session, fresh)


def test_a_run_in_steps_may_be_committed(engine: Engine):
    begun(engine, IN_STEPS)
    with Session(engine) as session:
        ledger.begin(session, **ASKED | {"key": "k-2"})
        ledger.begin(session, **IN_STEPS | {"key": "k-3"})
        with pytest.raises(TransactionRequired, match="'k-2'"):
            session.commit()


async def test_an_async_session_is_told_how(sqlite_url: str):
    async_engine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(async_engine) as session:
        with pytest.raises(TypeError, match=r"await session\.run_sync\(ledger\.begin, scope="):
            ledger.begin(session, **ASKED)
        fresh = await session.run_sync(ledger.begin, **ASKED)
        for function, given in ((ledger.complete, (fresh, OK)), (ledger.release, (fresh,))):
            with pytest.raises(TypeError, match="run_sync"):
                function(session, *given)
        await session.run_sync(ledger.complete, fresh, OK)
        await session.commit()
        assert isinstance(await session.run_sync(ledger.begin, **ASKED), Replay)
    await async_engine.dispose()
