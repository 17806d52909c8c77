"""A run in steps holds its key by a lease, on SQLite; what two do at once is in tests/integration."""

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError, LeaseLost, TransactionRequired
from outboxkit.http import ledger
from outboxkit.http.ledger import Replay
from tests.support.ledger_requests import (
    ASKED,
    CREATED,
    IN_STEPS,
    OK,
    begun,
    end_leases,
    row,
    told,
)


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
