"""A run in steps holds its key by a lease, on SQLite; what two do at once is in tests/integration."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError, LeaseLost, TransactionRequired
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay
from tests.support.ledger_requests import (
    ASKED,
    CREATED,
    IN_STEPS,
    OK,
    OTHER,
    begun,
    change,
    count,
    database_time,
    end_leases,
    row,
    told,
)


def test_in_steps_the_key_is_taken_for_as_long_as_the_lease(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    assert isinstance(fresh, Fresh)
    assert fresh.lease == timedelta(minutes=1)
    again = told(engine, IN_STEPS)
    assert isinstance(again, InProgress)
    assert timedelta(0) < again.after <= timedelta(minutes=1)
    assert told(engine, IN_STEPS | {"fingerprint": OTHER["fingerprint"]}) == Mismatch()


def test_who_takes_over_has_the_finished_steps(engine: Engine):
    first = begun(engine, IN_STEPS)
    change(engine, steps=b'{"charge": {"id":7},"mail":null}')
    made = row(engine).created_at
    end_leases(engine)
    second = begun(engine, IN_STEPS)
    assert isinstance(second, Fresh)
    assert second.steps == b'{"charge": {"id":7},"mail":null}'
    assert (second.token != first.token, row(engine).created_at) == (True, made)
    assert second.expires_at >= first.expires_at


def test_a_slow_run_cannot_overwrite_the_one_that_took_over(engine: Engine):
    first = begun(engine, IN_STEPS)
    end_leases(engine)
    second = begun(engine, IN_STEPS)
    with Session(engine) as session, session.begin():
        for refused in (
            lambda: ledger.complete(session, first, CREATED),
            lambda: ledger.release(session, first),
            lambda: ledger.release(session, first, forget=True),
        ):
            with pytest.raises(LeaseLost, match="another run has taken over"):
                refused()
    with Session(engine) as session, session.begin():
        ledger.complete(session, second, OK)
    assert told(engine, IN_STEPS) == Replay(OK, second.expires_at)


def test_a_run_whose_lease_is_over_may_complete_as_long_as_nobody_took_over(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    end_leases(engine)
    with Session(engine) as session, session.begin():
        ledger.complete(session, fresh, CREATED)
    assert (row(engine).steps, row(engine).locked_until) == (None, None)
    assert told(engine, IN_STEPS) == Replay(CREATED, fresh.expires_at)


def test_what_has_its_answer_is_never_answered_again(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    with Session(engine) as session, session.begin():
        ledger.complete(session, fresh, CREATED)
    with Session(engine) as session, pytest.raises(LeaseLost, match="this run has its answer"):
        ledger.complete(session, fresh, OK)
    change(engine, locked_until=database_time(engine))
    assert told(engine, IN_STEPS) == Replay(CREATED, fresh.expires_at)


def test_a_released_request_is_resumed_at_once(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    change(engine, steps=b'{"charge":1}')
    with Session(engine) as session, session.begin():
        ledger.release(session, fresh)
    resumed = begun(engine, IN_STEPS)
    assert isinstance(resumed, Fresh)
    assert resumed.steps == b'{"charge":1}'


def test_a_forgotten_request_never_came(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    with Session(engine) as session, session.begin():
        ledger.release(session, fresh, forget=True)
    assert count(engine) == 0
    with Session(engine) as session, pytest.raises(LeaseLost, match="is not there"):
        ledger.complete(session, fresh, OK)


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
