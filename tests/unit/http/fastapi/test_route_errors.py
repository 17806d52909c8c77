"""What an idempotent endpoint remembers of an answer that is not a success."""

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from tests.unit.http.fastapi.conftest import Shop


async def test_a_validation_failure_is_forgotten_whatever_the_application_answers_it_with(shop: Shop):
    shop.serve()

    @shop.app.exception_handler(RequestValidationError)
    async def conflict(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"wrong": len(error.errors())}, 409)

    assert (await shop.post(None)).status_code == 409
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1
