"""What an idempotent endpoint remembers of an answer that is not a success."""

from collections.abc import Iterator
from typing import Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from sqlalchemy.orm import Session

from tests.unit.http.fastapi.conftest import Shop


async def test_a_validation_failure_is_forgotten_whatever_the_application_answers_it_with(shop: Shop):
    shop.serve()

    @shop.app.exception_handler(RequestValidationError)
    async def conflict(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"wrong": len(error.errors())}, 409)

    assert (await shop.post(None)).status_code == 409
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1


async def test_an_error_is_remembered_if_the_session_is_on_a_connection(shop: Shop):
    def get_session() -> Iterator[Session]:
        with shop.engine.connect() as connection, Session(connection) as session:
            yield session

    def refuse(*_: Any) -> None:
        raise HTTPException(409)

    shop.get_session, shop.act = get_session, refuse
    shop.serve()
    answers = [await shop.post(), await shop.post()]
    assert [(each.status_code, each.headers.get("idempotency-replayed")) for each in answers] == [
        (409, None),
        (409, "true"),
    ]
    assert shop.count() == 0


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
