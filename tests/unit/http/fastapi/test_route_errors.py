"""What an idempotent endpoint remembers of an answer that is not a success."""

from typing import Any

import pytest
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm.exc import StaleDataError
from starlette.exceptions import HTTPException as StarletteHTTPException

from outboxkit.http import problems
from tests.unit.http.fastapi.conftest import Shop


async def test_a_body_that_is_not_valid_is_no_use_of_the_key(shop: Shop):
    shop.serve()
    wrong = await shop.post(None)
    assert wrong.status_code == 422
    assert wrong.json()["detail"][0]["loc"] == ["body", "item"]
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1


@pytest.mark.parametrize("raised", [HTTPException(503), HTTPException(401), RuntimeError("a defect")])
async def test_an_error_of_the_moment_forgets_the_key_and_the_work(shop: Shop, raised: Exception):
    shop.serve()

    def fail(*_: Any) -> None:
        raise raised

    shop.act, succeed = fail, shop.act
    assert (await shop.post()).status_code == getattr(raised, "status_code", 500)
    assert shop.count() == 0
    shop.act = succeed
    assert (await shop.post()).status_code == 201
    assert shop.count() == 1


@pytest.mark.parametrize("kind", ["shop", "begun_shop"])
async def test_an_error_that_the_endpoint_raised_is_remembered_without_its_effects(
    kind: str, request: pytest.FixtureRequest
):
    shop: Shop = request.getfixturevalue(kind)
    shop.serve()

    def refuse(*_: Any) -> None:
        raise HTTPException(409, "sold out", {"X-Why": "empty shelf"})

    shop.act, succeed = refuse, shop.act
    first = await shop.post()
    shop.act = succeed
    second = await shop.post()
    for answer in (first, second):
        assert (answer.status_code, answer.json(), answer.headers["x-why"]) == (
            409,
            {"detail": "sold out"},
            "empty shelf",
        )
        assert "idempotency-expires" in answer.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert shop.runs == ["pen"]
    assert shop.count() == 0


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


async def test_errors_are_not_remembered_where_that_is_turned_off(shop: Shop):
    shop.serve(store_errors=False)

    def refuse(*_: Any) -> None:
        raise HTTPException(409)

    shop.act = refuse
    for _ in range(2):
        assert (await shop.post()).status_code == 409
    assert shop.runs == ["pen", "pen"]


async def test_a_returned_conflict_is_remembered_with_its_effects(shop: Shop):
    shop.serve()
    shop.act = lambda *_: JSONResponse({"state": "closed"}, 409)
    assert [(await shop.post()).status_code for _ in range(2)] == [409, 409]
    assert (shop.runs, shop.count()) == (["pen"], 1)


async def test_a_returned_answer_that_is_not_kept_takes_its_effects_along(shop: Shop):
    shop.serve()
    shop.act = lambda *_: JSONResponse({}, 422)
    assert [(await shop.post()).status_code for _ in range(2)] == [422, 422]
    assert (shop.runs, shop.count()) == (["pen", "pen"], 0)


async def test_a_stale_row_is_a_failed_precondition(shop: Shop):
    shop.serve()

    def fail(*_: Any) -> None:
        raise StaleDataError("0 rows matched")

    shop.act, succeed = fail, shop.act
    answer = await shop.post()
    assert (answer.status_code, answer.json()["type"]) == (412, problems.TYPES + "precondition-failed")
    shop.act = succeed
    assert (await shop.post()).status_code == 201


async def test_a_problem_that_the_endpoint_raises_is_its_answer(shop: Shop):
    shop.serve()

    def fail(*_: Any) -> None:
        raise problems.precondition_failed("another version")

    shop.act = fail
    answer = await shop.post()
    assert (answer.status_code, answer.headers["content-type"]) == (412, problems.MEDIA_TYPE)
    assert shop.count() == 0


async def test_a_validation_failure_is_forgotten_whatever_the_application_answers_it_with(shop: Shop):
    shop.serve()

    @shop.app.exception_handler(RequestValidationError)
    async def conflict(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"wrong": len(error.errors())}, 409)

    assert (await shop.post(None)).status_code == 409
    assert (await shop.post("pen")).status_code == 201
    assert shop.count() == 1
