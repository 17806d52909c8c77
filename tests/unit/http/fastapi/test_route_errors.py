"""What an idempotent endpoint remembers of an answer that is not a success."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette
from starlette.routing import Route

from outboxkit.http import problems
from outboxkit.http.fastapi import add_problem_handlers
from tests.unit.http.fastapi.conftest import Shop


async def test_a_validation_failure_is_forgotten_whatever_the_application_answers_it_with(shop: Shop):
    shop.serve()

    @shop.app.exception_handler(RequestValidationError)
    async def conflict(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"wrong": len(error.errors())}, 409)

    assert (await shop.post(None)).status_code == 409
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1


def refuse(*_: Any) -> None:
    raise HTTPException(409)


async def test_an_error_is_remembered_if_the_session_is_on_a_connection(shop: Shop):
    tokens: list[Any] = []

    @event.listens_for(shop.engine, "begin")
    def note(connection: Connection) -> None:
        tokens.append(connection.get_execution_options().get("logging_token"))

    def get_session() -> Iterator[Session]:
        options = {"logging_token": "tenant"}
        with shop.engine.connect().execution_options(**options) as connection, Session(connection) as session:
            yield session

    shop.get_session, shop.act = get_session, refuse
    shop.serve()
    answers = [await shop.post(), await shop.post()]
    assert [(each.status_code, each.headers.get("idempotency-replayed")) for each in answers] == [
        (409, None),
        (409, "true"),
    ]
    assert set(tokens) == {"tenant"}
    assert shop.count() == 0


@pytest.mark.parametrize("raised", [problems.precondition_failed("changed"), StaleDataError("0 rows")])
@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_problem_handlers_answer_for_any_endpoint(raised: Exception, framework: type[Starlette]):
    async def fail(_: Request) -> Response:
        raise raised

    app = framework(routes=[Route("/", fail, methods=["PATCH"])])
    add_problem_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        answer = await client.patch("/")
    assert (answer.status_code, answer.headers["content-type"]) == (412, problems.MEDIA_TYPE)


async def test_a_remembered_error_is_written_by_a_session_that_is_set_up_like_the_endpoints_own(shop: Shop):
    sessions = sessionmaker(shop.engine, info={"tenant": "7"})
    tenants: list[str] = []

    @event.listens_for(sessions, "after_begin")
    def choose(session: Session, *_: object) -> None:
        tenants.append(session.info["tenant"])

    def get_session() -> Iterator[Session]:
        with sessions.begin() as session:
            yield session

    shop.get_session, shop.act = get_session, refuse
    shop.serve()
    await shop.post()
    assert tenants == ["7", "7"]


async def test_an_error_that_the_application_answers_in_pieces_is_sent_whole_and_forgotten(shop: Shop):
    @shop.app.exception_handler(LookupError)
    async def in_pieces(_: Request, __: LookupError) -> Response:
        return StreamingResponse(iter(["a", "b"]), 409)

    def refuse(*_: Any) -> None:
        raise LookupError

    shop.act = refuse
    shop.serve()
    answers = [await shop.post(), await shop.post()]
    found = [(each.status_code, each.text, each.headers.get("idempotency-replayed")) for each in answers]
    assert found == [(409, "ab", None)] * 2
