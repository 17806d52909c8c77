"""Which runs of a transaction still need an answer, through savepoints and other guards."""

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from outboxkit import idempotency, transaction
from outboxkit.errors import TransactionRequired
from outboxkit.idempotency import Fresh, Replay, contention
from tests.requests import ASKED, OK, count, told
from tests.unit.shop import effects


def test_what_began_in_a_savepoint_ends_with_it(engine: Engine):
    with Session(engine) as session:
        savepoint = session.begin_nested()
        fresh = idempotency.begin(session, **ASKED)
        assert contention.is_unfinished(session, fresh.token)
        savepoint.rollback()
        assert not contention.is_unfinished(session, fresh.token)
        with pytest.raises(TransactionRequired):
            idempotency.complete(session, fresh, OK)
        session.execute(insert(effects).values(what="else"))
        session.commit()
    assert count(engine) == 0


def test_what_began_in_a_savepoint_that_was_kept_needs_its_answer(engine: Engine):
    with Session(engine) as session:
        with session.begin_nested(), session.begin_nested():
            fresh = idempotency.begin(session, **ASKED)
        with pytest.raises(TransactionRequired):
            session.commit()
        idempotency.complete(session, fresh, OK)
        session.commit()
    assert isinstance(told(engine), Replay)


def test_an_answer_that_was_taken_back_is_needed_again(engine: Engine):
    with Session(engine) as session:
        fresh = idempotency.begin(session, **ASKED)
        with session.begin_nested() as savepoint:
            idempotency.complete(session, fresh, OK)
            savepoint.rollback()
        with pytest.raises(TransactionRequired, match="'k-1'"):
            session.commit()
        idempotency.complete(session, fresh, OK)
        session.commit()
    assert isinstance(told(engine), Replay)


def test_a_closed_session_begins_anew(engine: Engine):
    session = Session(engine)
    for _ in range(2):
        assert isinstance(idempotency.begin(session, **ASKED), Fresh)
        session.close()
    session.execute(insert(effects).values(what="else"))
    session.commit()
    session.close()
    assert count(engine) == 0


def test_what_forbade_the_commit_before_forbids_it_after(engine: Engine):
    with Session(engine) as session:
        session.begin()
        transaction.forbid_commit(session, "the first reason")
        for end in ("complete", "roll back"):
            savepoint = session.begin_nested()
            fresh = idempotency.begin(session, **ASKED | {"key": end})
            savepoint.commit() if end == "complete" else savepoint.rollback()
            if end == "complete":
                idempotency.complete(session, fresh, OK)
            with pytest.raises(TransactionRequired, match="the first reason"):
                session.commit()


def test_a_run_of_another_session_is_not_unfinished_here(engine: Engine):
    with Session(engine) as session:
        assert not contention.is_unfinished(session, "token")
        contention.completed(session, "token")
        fresh = idempotency.begin(session, **ASKED)
        assert not contention.is_unfinished(session, "token")
        assert contention.is_unfinished(session, fresh.token)
