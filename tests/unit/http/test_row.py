"""Writing with a token: what a run is told that may write no more."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from outboxkit.errors import LeaseLost
from outboxkit.http.ledger import Fresh, write_fenced
from outboxkit.statements import idempotency as statements
from tests.support.ledger_requests import IN_STEPS, begun, done, expire, row


def end(engine: Engine, fresh: Fresh) -> None:
    with engine.begin() as connection:
        write_fenced(connection, fresh, statements.end_key_lease("sqlite"), {})


def other(fresh: Fresh) -> Fresh:
    return Fresh(fresh.scope, fresh.principal, fresh.key, "another", fresh.expires_at, timedelta(minutes=1))


def test_the_run_that_has_the_row_writes(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    before = row(engine).locked_until
    end(engine, fresh)
    assert row(engine).locked_until < before


def test_the_reason_is_told(engine: Engine):
    fresh = begun(engine, IN_STEPS)
    with pytest.raises(LeaseLost, match="another run has taken over"):
        end(engine, other(fresh))
    expire(engine)
    with pytest.raises(LeaseLost, match="it has expired or was forgotten, or its begin was not committed"):
        end(engine, other(fresh))
    answered = done(engine, IN_STEPS)
    with pytest.raises(LeaseLost, match="this run has its answer"):
        end(engine, answered)
