"""What an endpoint cannot be, said when it is declared or first used."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit.errors import ConfigurationError
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from tests.unit.http.fastapi.conftest import Shop
from tests.unit.shop import effects


def get_session() -> Iterator[Session]:
    yield Session()


Opened = Annotated[Session, Depends(get_session)]
idempotent = Idempotent(session=get_session, principal=None)
BOTH = [Depends(idempotent)]


def router() -> APIRouter:
    return APIRouter(route_class=IdempotentRoute)


@pytest.mark.parametrize("kind", [lambda engine: engine, lambda engine: scoped_session(sessionmaker(engine))])
async def test_what_is_no_session_is_refused(shop: Shop, kind: Any):
    shop.get_session = lambda: kind(shop.engine)
    shop.serve()
    with pytest.raises(ConfigurationError, match="a dependency that gives a Session or an AsyncSession is accepted"):
        await shop.post(raising=True)


def test_an_endpoint_with_another_session():
    def other() -> Session:
        return Session()

    with pytest.raises(ConfigurationError, match=r"does not get that session.*Depends\(get_session\)"):

        @router().post("/orders", dependencies=BOTH)
        def place(session: Annotated[Session, Depends(other)]): ...


async def test_the_session_may_come_from_a_method(shop: Shop):
    """A bound method is a new object at each look; FastAPI takes equal ones for one dependency."""

    class Database:
        def session(self) -> Iterator[Session]:
            yield from shop.get_session()

    db = Database()

    @shop.app.post("/orders", dependencies=[Depends(Idempotent(session=db.session, principal=None))])
    def place(session: Annotated[Session, Depends(db.session)]) -> None:
        session.execute(effects.insert().values(what="placed"))

    assert [(await shop.post()).status_code for _ in range(2)] == [200, 200]
    assert shop.count() == 1


def test_the_session_may_be_deeper_in_the_tree():
    def orders(session: Opened) -> Session:
        return session

    @router().post("/orders", dependencies=BOTH)
    def place(found: Annotated[Session, Depends(orders)]): ...


@pytest.mark.parametrize("depends", [Depends(get_session, use_cache=False), Depends(get_session, scope="function")])
def test_a_session_that_would_be_a_second_one(depends: Any):
    with pytest.raises(ConfigurationError, match="would be in another transaction than its key"):

        @router().post("/orders", dependencies=BOTH)
        def place(session: Annotated[Session, depends]): ...


async def test_two_rules_at_once(shop: Shop):
    rules = [Depends(Idempotent(session=shop.get_session, principal=None)) for _ in range(2)]

    @shop.app.post("/orders", dependencies=rules)
    def place(session: Annotated[Session, Depends(shop.get_session)]) -> None: ...

    assert (await shop.post()).status_code == 500


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


async def test_an_application_mounted_in_an_included_router_has_its_own_routes(shop: Shop):
    shop.serve()
    outer, inner = APIRouter(), shop.app
    outer.mount("/inner", inner)
    app = FastAPI()
    app.include_router(outer, prefix="/outer")
    shop.app = app
    answers = [await shop.post(path="/outer/inner/orders") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[1].headers["idempotency-replayed"] == "true"
