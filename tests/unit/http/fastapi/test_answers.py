"""Answers as Starlette sends them."""

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

from outboxkit.http import problems
from outboxkit.http.fastapi import add_problem_handlers


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
