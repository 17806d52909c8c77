"""Sessions of either colour."""

import threading

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit.errors import ConfigurationError
from outboxkit.http.fastapi import _on, _remember, _usable
from outboxkit.http.ledger import Fresh, Mismatch, Replay, Response

QUESTION = {"scope": "POST /orders", "principal": "ada", "key": "k", "fingerprint": b"f" * 32}
ANSWER = Response(409, (), b"sold out")


async def test_a_sync_session_is_used_in_a_thread_and_an_async_one_from_inside():
    with Session() as session:
        used, where = await _on(session, lambda given: (given, threading.get_ident()))
    assert used is session
    assert where != threading.get_ident()
    async with AsyncSession() as session:
        assert await _on(session, lambda given: given) is session.sync_session


def test_scoped_sessions_are_opened_where_they_are_one_for_a_request():
    made = scoped_session(sessionmaker(), scopefunc=lambda: 1)
    assert _usable(made) is made()
    made_async = async_scoped_session(async_sessionmaker(), scopefunc=lambda: 1)
    assert _usable(made_async) is made_async()
    with pytest.raises(ConfigurationError, match="a session for each thread"):
        _usable(scoped_session(sessionmaker()))


def test_what_is_no_session_is_refused(engine: Engine):
    with pytest.raises(ConfigurationError, match="session= gives Engine"):
        _usable(engine)


def test_an_answer_alone_is_remembered_once(engine: Engine):
    with Session(engine) as session:
        assert isinstance(_remember(session, question=QUESTION, response=ANSWER), Fresh)
        found = _remember(session, question=QUESTION, response=Response(404))
        assert isinstance(found, Replay)
        assert found.response == ANSWER
        assert _remember(session, question=QUESTION | {"fingerprint": b"g" * 32}, response=ANSWER) == Mismatch()
