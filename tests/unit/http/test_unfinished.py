"""Which runs of a transaction still need an answer, through savepoints."""

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from outboxkit.database import transaction
from outboxkit.errors import TransactionRequired
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, Replay
from tests.support.ledger_requests import ASKED, OK, count, told
from tests.unit.shop import effects


def test_what_began_in_a_savepoint_ends_with_it(engine: Engine):
    with Session(engine) as session:
        savepoint = session.begin_nested()
        fresh = ledger.begin(session, **ASKED)
        savepoint.rollback()
        with pytest.raises(TransactionRequired):
            ledger.complete(session, fresh, OK)
        session.execute(insert(effects).values(what="else"))
        session.commit()
    assert count(engine) == 0


def test_what_began_in_a_savepoint_that_was_kept_needs_its_answer(engine: Engine):
    with Session(engine) as session:
        with session.begin_nested(), session.begin_nested():
            fresh = ledger.begin(session, **ASKED)
        with pytest.raises(TransactionRequired):
            session.commit()
        ledger.complete(session, fresh, OK)
        session.commit()
    assert isinstance(told(engine), Replay)


def test_an_answer_that_was_taken_back_is_needed_again(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        with session.begin_nested() as savepoint:
            ledger.complete(session, fresh, OK)
            savepoint.rollback()
        with pytest.raises(TransactionRequired, match="'k-1'"):
            session.commit()
        ledger.complete(session, fresh, OK)
        session.commit()
    assert isinstance(told(engine), Replay)


def test_an_answered_run_is_committed_though_another_savepoint_was_rolled_back(engine: Engine):
    with Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        session.begin_nested().rollback()
        ledger.complete(session, fresh, OK)
        session.begin_nested().rollback()
        session.commit()
    assert isinstance(told(engine), Replay)


def test_a_closed_session_begins_anew(engine: Engine):
    session = Session(engine)
    for _ in range(2):
        assert isinstance(ledger.begin(session, **ASKED), Fresh)
        session.close()
    session.execute(insert(effects).values(what="else"))
    session.commit()
    session.close()
    assert count(engine) == 0


def test_a_handlers_guard_is_another_one(engine: Engine):
    with Session(engine) as session, transaction.forbidden_commit(session, "the handler's reason"):
        fresh = ledger.begin(session, **ASKED)
        ledger.complete(session, fresh, OK)
        with pytest.raises(TransactionRequired, match="the handler's reason"):
            session.commit()
