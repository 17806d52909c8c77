"""Answers as Starlette sends them."""

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

from outboxkit import problems
from outboxkit.idempotency import Response
from outboxkit.integrations.fastapi import add_problem_handlers
from outboxkit.integrations.fastapi.answers import answer_to, decoded, problem_answer, remembered_answer


def test_a_remembered_answer_has_its_headers_in_their_order_and_more_than_once():
    headers = (("link", "<a>"), ("content-type", "text/plain; charset=x"), ("link", "<b>"))
    answer = remembered_answer(Response(201, headers, b"\xff"))
    assert (answer.status_code, answer.body) == (201, b"\xff")
    assert decoded(answer) == [("content-length", "1"), *headers]


def test_a_problem_carries_its_headers():
    answer = problem_answer(problems.in_progress())
    assert answer.status_code == 409
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["content-type"] == problems.MEDIA_TYPE


@pytest.mark.parametrize("raised", [problems.precondition_failed("changed"), StaleDataError("0 rows")])
@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_problem_handlers_answer_for_any_endpoint(raised: Exception, framework: type[Starlette]):
    async def fail(_: Request) -> Answer:
        raise raised

    app = framework(routes=[Route("/", fail, methods=["PATCH"])])
    add_problem_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        answer = await client.patch("/")
    assert (answer.status_code, answer.headers["content-type"]) == (412, problems.MEDIA_TYPE)


async def test_a_handler_of_everything_is_not_for_errors_that_are_foreseen():
    app = FastAPI()
    app.add_exception_handler(Exception, lambda *_: Answer())
    assert await answer_to(Request({"type": "http", "app": app}), RuntimeError("a defect")) is None
