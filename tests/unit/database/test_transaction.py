"""The caller's transaction: which sessions are accepted, and which commits are refused."""

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.database.transaction import connection_of, forbidden_commit
from outboxkit.errors import TransactionRequired

WHY = "complete it first"


@pytest.fixture
def memory():
    made = create_engine("sqlite://")
    yield made
    made.dispose()


def test_a_connection_is_in_a_transaction(memory: Engine):
    with Session(memory) as session:
        assert connection_of(session, WHY, clause=tables.inbox).in_transaction()


def test_a_connection_in_autocommit_mode_is_refused(postgresql_url: str):
    engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(TransactionRequired, match=f"AUTOCOMMIT: {WHY}"):
        connection_of(session, WHY, clause=tables.inbox)
    engine.dispose()


def test_a_commit_is_refused_inside_the_block_and_a_savepoint_is_not(memory: Engine):
    with Session(memory) as session:
        with forbidden_commit(session, "outer"):
            with forbidden_commit(session, "inner"):
                with session.begin_nested():
                    session.execute(text("SELECT 1"))
                with pytest.raises(TransactionRequired, match="inner"):
                    session.commit()
            session.rollback()
            session.execute(text("SELECT 1"))
            with pytest.raises(TransactionRequired, match="outer"):
                session.commit()
        session.commit()
