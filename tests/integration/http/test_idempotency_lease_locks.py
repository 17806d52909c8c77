"""Requests in steps whose lease several want at once, on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outboxkit.errors import LeaseLost
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay
from tests.integration.outbox.test_prepared_transactions import preparing_url  # noqa: F401 - a fixture
from tests.support.ledger_requests import CREATED, IN_STEPS, OK, OTHER, begun, end_leases, told, waiting
from tests.support.polling import eventually


def complete(engine: Engine, fresh: Fresh) -> None:
    with Session(engine) as session, session.begin():
        ledger.complete(session, fresh, OK)


def test_a_mismatch_of_a_run_that_lost_its_lease_locks_nothing(pg_engine: Engine):
    begun(pg_engine, IN_STEPS)
    end_leases(pg_engine)
    with Session(pg_engine) as session:
        assert ledger.begin(session, **OTHER) == Mismatch()
        assert session.execute(text("SELECT pg_current_xact_id_if_assigned()")).scalar_one() is None


def test_a_run_in_steps_that_is_not_committed_is_waited_for(pg_engine: Engine):
    with ThreadPoolExecutor(1) as pool, Session(pg_engine) as session:
        assert isinstance(ledger.begin(session, **IN_STEPS), Fresh)
        second = pool.submit(told, pg_engine, IN_STEPS)
        eventually(lambda: waiting(pg_engine))
        session.commit()
        assert isinstance(second.result(60), InProgress)


def test_another_payload_that_waited_takes_nothing_over(pg_engine: Engine):
    """It could not see the row when it asked whether the key is in use: the row itself is asked again."""
    short = IN_STEPS | {"lease": timedelta(milliseconds=1)}
    other = short | {"fingerprint": OTHER["fingerprint"]}
    with ThreadPoolExecutor(1) as pool, Session(pg_engine) as session:
        assert isinstance(ledger.begin(session, **short), Fresh)
        own = "SELECT locked_until <= clock_timestamp() FROM outboxkit_idempotency"
        eventually(lambda: session.execute(text(own)).scalar_one())
        second = pool.submit(told, pg_engine, other)
        eventually(lambda: waiting(pg_engine))
        session.commit()
        assert second.result(60) == Mismatch()
    assert isinstance(told(pg_engine, short), Fresh)


def test_completing_and_taking_over_at_once(pg_engine: Engine):
    """Who takes over waits for the run that is committing its answer, and gets this."""
    fresh = begun(pg_engine, IN_STEPS)
    end_leases(pg_engine)
    with ThreadPoolExecutor(1) as pool, Session(pg_engine) as session:
        ledger.complete(session, fresh, CREATED)
        second = pool.submit(told, pg_engine, IN_STEPS)
        eventually(lambda: waiting(pg_engine))
        session.commit()
        assert second.result(60) == Replay(CREATED, fresh.expires_at)


def test_taking_over_and_completing_at_once(pg_engine: Engine):
    """The slow run waits for the one that is taking over, and is told."""
    fresh = begun(pg_engine, IN_STEPS)
    end_leases(pg_engine)
    with ThreadPoolExecutor(1) as pool, Session(pg_engine) as session:
        assert isinstance(ledger.begin(session, **IN_STEPS), Fresh)
        slow = pool.submit(complete, pg_engine, fresh)
        eventually(lambda: waiting(pg_engine))
        session.commit()
        with pytest.raises(LeaseLost, match="another run has taken over"):
            slow.result(60)
