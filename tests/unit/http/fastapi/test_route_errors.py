"""What an idempotent endpoint remembers of an answer that is not a success."""

from typing import Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from tests.unit.http.fastapi.conftest import Shop


async def test_a_body_that_is_not_valid_is_no_use_of_the_key(shop: Shop):
    shop.serve()
    wrong = await shop.post(None)
    assert wrong.status_code == 422
    assert wrong.json()["detail"][0]["loc"] == ["body", "item"]
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1


async def test_an_error_is_remembered_as_the_application_answers_it(shop: Shop):
    shop.serve()

    class SoldOut(Exception):
        pass

    @shop.app.exception_handler(SoldOut)
    async def sold_out(_: Request, error: SoldOut) -> Response:
        return JSONResponse({"mine": str(error)}, 409)

    @shop.app.exception_handler(StarletteHTTPException)
    def plain(_: Request, error: StarletteHTTPException) -> Response:
        return Response(f"plain {error.status_code}", error.status_code, media_type="text/plain")

    for key, error, text in (("a", SoldOut("pens"), '{"mine":"pens"}'), ("b", HTTPException(404), "plain 404")):

        def refuse(*_: Any, error: Exception = error) -> None:
            raise error

        shop.act = refuse
        answers = [await shop.post(key=key) for _ in range(2)]
        assert [answer.text for answer in answers] == [text] * 2
        assert answers[1].headers["idempotency-replayed"] == "true"


async def test_a_validation_failure_is_forgotten_whatever_the_application_answers_it_with(shop: Shop):
    shop.serve()

    @shop.app.exception_handler(RequestValidationError)
    async def conflict(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"wrong": len(error.errors())}, 409)

    assert (await shop.post(None)).status_code == 409
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1
