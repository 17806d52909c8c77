"""The run of a request, without a framework."""

from datetime import timedelta

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outboxkit.http import ledger
from outboxkit.http.request import RequestKey, Rules
from outboxkit.http.run import Run

ROW = text("SELECT token, state, locked_until FROM outboxkit_idempotency")
REQUEST = RequestKey("POST /orders", "k", b"f" * 32)
LEASE = timedelta(minutes=1)


def test_a_run_that_lost_its_lease_takes_nothing_from_one_whose_lease_ended_too(engine: Engine):
    lost, later = (Run(Rules(), REQUEST, "ada", LEASE) for _ in range(2))
    with Session(engine) as session:
        for run in (lost, later):
            assert run.begin(session) is None
            session.execute(text("UPDATE outboxkit_idempotency SET locked_until = '2020-01-01 00:00:00.000000'"))
            session.commit()
        before = session.execute(ROW).one()
        session.rollback()
        assert lost.taken_over(session).status == 409
        assert session.execute(ROW).one() == before
        session.rollback()
        assert [name for name, _ in later.end(session, 201, lambda: ledger.Response(201))] == ["Idempotency-Expires"]


def test_an_error_is_not_the_outcome_while_another_run_is_at_work(engine: Engine):
    failed, other = Run(Rules(), REQUEST, "ada"), Run(Rules(), REQUEST, "ada", LEASE)
    refused = ledger.Response(409, (), b"sold out")
    with Session(engine) as session:
        assert other.begin(session) is None
        found = failed.remember(session, 409, lambda: refused)
        assert isinstance(found, ledger.Response)
        assert (found.status, b"in-progress" in found.body) == (409, True)
        other.end(session, 201, lambda: ledger.Response(201, (), b"done"))
        found = failed.remember(session, 409, lambda: refused)
        assert isinstance(found, ledger.Response)
        assert (found.status, found.body) == (201, b"done")
