"""Sessions of either colour."""

import threading
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit.errors import ConfigurationError
from outboxkit.http.fastapi import _anew, _on, _usable
from outboxkit.http.ledger import Response
from outboxkit.http.request import RequestKey, Rules
from outboxkit.http.run import Run

QUESTION = "POST /orders", "k", b"f" * 32
ANSWER = Response(409, (), b"sold out")


async def test_a_sync_session_is_used_in_a_thread_and_an_async_one_from_inside():
    with Session() as session:
        used, where = await _on(session, lambda given: (given, threading.get_ident()))
    assert used is session
    assert where != threading.get_ident()
    async with AsyncSession() as session:
        assert await _on(session, lambda given: given) is session.sync_session


def test_what_is_no_session_is_refused(engine: Engine):
    for given in (engine, scoped_session(sessionmaker(engine))):
        with pytest.raises(ConfigurationError, match=f"session= gives {type(given).__name__}; .* is accepted"):
            _usable(given)


def test_an_answer_alone_of_a_session_whose_connection_is_closed(engine: Engine):
    with engine.connect().execution_options(logging_token="tenant") as connection:
        session = Session(connection)
    connection = _anew(session, call=lambda anew: anew.connection())
    assert connection.get_execution_options()["logging_token"] == "tenant"


def test_an_answer_alone_is_remembered_once(engine: Engine):
    run, other = (
        Run(Rules(), RequestKey(*QUESTION), "ada"),
        Run(Rules(), RequestKey("POST /orders", "k", b"g" * 32), "ada"),
    )
    with Session(engine) as session:

        def remember(run: Run, response: Response) -> Any:
            return _anew(session, call=partial(run.remember, status=response.status, whole=lambda: response))

        assert [name for name, _ in remember(run, ANSWER)] == ["Idempotency-Expires"]
        found = remember(run, Response(404))
        assert isinstance(found, Response)
        assert (found.status, found.body) == (ANSWER.status, ANSWER.body)
        assert remember(other, ANSWER) == ()
