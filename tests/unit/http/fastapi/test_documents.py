"""The OpenAPI document."""

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header
from sqlalchemy.orm import Session

from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from tests.unit.http.fastapi.conftest import Order

PROBLEM = "application/problem+json"


def get_session() -> Session:
    return Session()


Opened = Annotated[Session, Depends(get_session)]


def operation(*, included: bool = False, **rules: Any) -> dict[str, Any]:
    app = FastAPI()
    router = APIRouter(route_class=IdempotentRoute) if included else app.router
    router.route_class = IdempotentRoute
    idempotent = Idempotent(session=get_session, principal=None, **rules)

    @router.post("/orders", dependencies=[Depends(idempotent)], openapi_extra={"x-mine": 1})
    def place(order: Order, session: Opened) -> None: ...

    if included:
        app.include_router(router)
    return app.openapi()["paths"]["/orders"]["post"]


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("required", [False, True])
def test_the_header_is_documented(included: bool, required: bool):
    found = operation(included=included, required=required)
    [header] = found["parameters"]
    assert (header["name"], header["in"], header["required"]) == ("Idempotency-Key", "header", required)
    assert found["x-mine"] == 1


@pytest.mark.parametrize("included", [False, True])
def test_refusals_are_documented_beside_what_fastapi_documents(included: bool):
    answers = operation(included=included)["responses"]
    assert set(answers) == {"200", "400", "409", "413", "422"}
    for status in ("400", "409", "413", "422"):
        assert answers[status]["content"][PROBLEM]["schema"]["required"] == ["type", "title", "status", "detail"]
    assert answers["422"]["content"]["application/json"]["schema"]["$ref"].endswith("HTTPValidationError")


def test_what_the_endpoint_documents_itself_stays():
    app = FastAPI()
    app.router.route_class = IdempotentRoute
    idempotent = Idempotent(session=get_session, principal=None)
    extra = {"responses": {"409": {"description": "sold out"}}}

    @app.post("/orders", dependencies=[Depends(idempotent)], openapi_extra=extra)
    def place(session: Opened, idempotency_key: Annotated[str, Header(description="mine")]) -> None: ...

    found = app.openapi()["paths"]["/orders"]["post"]
    assert found["responses"]["409"]["description"] == "sold out"
    assert [parameter["description"] for parameter in found["parameters"]] == ["mine"]
