"""What an endpoint cannot be, said when it is declared."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import FileResponse, StreamingResponse
from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError
from outboxkit.integrations.fastapi import Idempotent, IdempotentRoute
from tests.unit.integrations.fastapi.conftest import Shop


def get_session() -> Iterator[Session]:
    yield Session()


Opened = Annotated[Session, Depends(get_session)]
idempotent = Idempotent(session=get_session, principal=None)
BOTH = [Depends(idempotent)]


def router() -> APIRouter:
    return APIRouter(route_class=IdempotentRoute)


@pytest.mark.parametrize("answer", [StreamingResponse, FileResponse])
def test_an_answer_in_pieces(answer: Any):
    with pytest.raises(ConfigurationError, match="POST /orders depends on Idempotent, but its answer is a stream"):

        @router().post("/orders", response_class=answer, dependencies=BOTH)
        def place(session: Opened): ...


def test_an_endpoint_that_yields():
    with pytest.raises(ConfigurationError, match="stream"):

        @router().post("/orders", dependencies=BOTH)
        async def place(session: Opened):
            yield 1


@pytest.mark.parametrize("methods", [["GET"], ["POST", "HEAD"]])
def test_a_request_that_changes_nothing(methods: list[str]):
    with pytest.raises(ConfigurationError, match="Idempotency keys are for POST and PATCH"):

        @router().api_route("/orders", methods=methods, dependencies=BOTH)
        def place(session: Opened): ...


def test_an_endpoint_with_another_session():
    def other() -> Session:
        return Session()

    with pytest.raises(ConfigurationError, match=r"but not on get_session itself.*Depends\(get_session\)"):

        @router().post("/orders", dependencies=BOTH)
        def place(session: Annotated[Session, Depends(other)]): ...


def test_the_session_may_be_deeper_in_the_tree():
    def orders(session: Opened) -> Session:
        return session

    @router().post("/orders", dependencies=BOTH)
    def place(found: Annotated[Session, Depends(orders)]): ...


@pytest.mark.parametrize("depends", [Depends(get_session, use_cache=False), Depends(get_session, scope="function")])
def test_a_session_that_would_be_a_second_one(depends: Any):
    with pytest.raises(ConfigurationError, match="two sessions of get_session"):

        @router().post("/orders", dependencies=BOTH)
        def place(session: Annotated[Session, depends]): ...


def test_two_rules_at_once():
    with pytest.raises(ConfigurationError, match="two Idempotent"):

        @router().post("/orders", dependencies=[*BOTH, Depends(Idempotent(session=get_session, principal=None))])
        def place(session: Opened): ...


async def test_a_session_of_function_scope_works_where_both_say_so(shop: Shop):
    scoped = Depends(shop.get_session, scope="function")
    rule = Idempotent(session=scoped, principal=None)
    opened: list[Session] = []

    @shop.app.post("/orders", dependencies=[Depends(rule)])
    def place(session: Annotated[Session, scoped]) -> int:
        opened.append(session)
        return len(opened)

    assert [(await shop.post()).json() for _ in range(2)] == [1, 1]


async def test_rules_that_come_with_an_included_router_are_kept_and_checked_at_first_use(shop: Shop):
    inner = router()
    rule = Idempotent(session=shop.get_session, principal=None)
    runs: list[int] = []

    @inner.post("/orders")
    def place(session: Annotated[Session, Depends(shop.get_session)]) -> int:
        runs.append(1)
        return 1

    @inner.post("/without")
    def without() -> int:
        return 1

    app = FastAPI()
    app.include_router(inner, dependencies=[Depends(rule)])
    shop.app = app
    assert [(await shop.post()).json() for _ in range(2)] == [1, 1]
    assert runs == [1]
    assert (await shop.post(path="/without")).status_code == 500
