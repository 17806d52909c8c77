"""Sessions of either colour."""

import threading

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, Mismatch, Replay, Response
from outboxkit.integrations.fastapi.sessions import finish, on, remember, rollback, usable

QUESTION = {"scope": "POST /orders", "principal": "ada", "key": "k", "fingerprint": b"f" * 32}
ANSWER = Response(409, (), b"sold out")


async def test_a_sync_session_is_used_in_a_thread_and_an_async_one_from_inside():
    with Session() as session:
        used, where = await on(session, lambda given, more: ((given, more), threading.get_ident()), 1)
    assert used == (session, 1)
    assert where != threading.get_ident()
    async with AsyncSession() as session:
        assert await on(session, lambda given: given) is session.sync_session


def test_scoped_sessions_are_opened_where_they_are_one_for_a_request():
    made = scoped_session(sessionmaker(), scopefunc=lambda: 1)
    assert usable(made) is made()
    made_async = async_scoped_session(async_sessionmaker(), scopefunc=lambda: 1)
    assert usable(made_async) is made_async()
    with pytest.raises(ConfigurationError, match="a session for each thread"):
        usable(scoped_session(sessionmaker()))


def test_what_is_no_session_is_refused(engine: Engine):
    with pytest.raises(ConfigurationError, match="session= gives Engine"):
        usable(engine)


def test_an_answer_alone_is_remembered_once(engine: Engine):
    with Session(engine) as session:
        assert isinstance(remember(session, QUESTION, ANSWER), Fresh)
        found = remember(session, QUESTION, Response(404))
        assert isinstance(found, Replay)
        assert found.response == ANSWER
        assert remember(session, QUESTION | {"fingerprint": b"g" * 32}, ANSWER) == Mismatch()


def test_without_a_key_there_is_nothing_but_the_commit(engine: Engine):
    with Session(engine) as session:
        session.connection()
        finish(session, None, ANSWER)
        assert not session.in_transaction()
        session.connection()
        rollback(session)
        assert not session.in_transaction()
