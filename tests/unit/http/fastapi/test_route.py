"""What becomes of a request to an idempotent endpoint."""

import json
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.tables import idempotency
from tests.unit.http.fastapi.conftest import Order, Shop, caller
from tests.unit.shop import effects


async def test_the_answer_leaves_after_the_commit(shop: Shop):
    """Seen by the background task, which runs when the answer has left and before the session is closed."""
    seen: list[int] = []
    idempotent = Idempotent(session=shop.get_session, principal=None)

    @shop.app.post("/orders")
    def place(order: Order, session: Annotated[Session, Depends(shop.get_session)], tasks: BackgroundTasks,
              _: Annotated[None, Depends(idempotent)]) -> None:  # fmt: skip
        session.execute(effects.insert().values(what=order.item))
        tasks.add_task(lambda: seen.append(shop.count()))

    await shop.post()
    await shop.post()
    assert seen == [1], "once, after the commit, and not at a replay"


async def test_the_body_is_limited_and_still_readable_by_the_applications_error_handlers(shop: Shop):
    shop.serve(max_body=50)
    read: list[bytes] = []

    @shop.app.exception_handler(HTTPException)
    async def note(request: Request, _: HTTPException) -> Response:
        read.append(await request.body())
        return Response(status_code=404)

    def refuse(*_: Any) -> None:
        raise HTTPException(404)

    shop.act = refuse
    await shop.post()
    assert json.loads(read[0]) == {"item": "pen"}

    taken: list[bytes] = []

    async def endless():
        while len(taken) < 1000:
            taken.append(b" ")
            yield b" "

    for content in (b" " * 51, endless()):
        answer = await shop.post(json=None, content=content)
        assert (answer.status_code, answer.json()["type"]) == (413, problems.TYPES + "body-too-large")
    assert len(taken) < 100, "what is too much is not read to its end"


async def test_a_body_that_is_cut_off_is_no_error_of_the_application(shop: Shop):
    """Clients may leave in the middle of a body as often as they like, and fill no log with tracebacks."""
    shop.serve()
    messages = [{"type": "http.request", "body": b'{"it', "more_body": True}, {"type": "http.disconnect"}]
    statuses: list[int] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    headers = [(b"idempotency-key", b"k"), (b"x-user", b"ada")]
    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": headers}
    await shop.app(scope, receive, send)
    assert statuses[0] == 400
    assert shop.count() == 0


async def test_a_route_of_another_class_is_refused(shop: Shop):
    shop.app.router.route_class = FastAPI().router.route_class
    shop.serve()
    with pytest.raises(ConfigurationError, match="route_class=IdempotentRoute"):
        await shop.post(raising=True)


async def test_an_included_router_keeps_its_routes_apart(shop: Shop):
    """Two operations with one path of their own and two prefixes; and a mounted application."""
    apps = [FastAPI(), shop.app]
    for app in apps:
        for prefix in ("/pens", "/inks"):
            router = APIRouter(route_class=IdempotentRoute)
            idempotent = Idempotent(session=shop.get_session, principal=caller)

            @router.post("/{size}", dependencies=[Depends(idempotent)])
            def place(size: int, order: Order, session: Annotated[Session, Depends(shop.get_session)]) -> int:
                session.execute(effects.insert().values(what=order.item))
                return size

            app.include_router(router, prefix=prefix)
    shop.app.mount("/inner", apps[0])
    for path in ("/pens/1", "/inks/1", "/inner/pens/1", "/inner/inks/1"):
        answers = [await shop.post(path=path) for _ in range(2)]
        assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true"], path
        assert (await shop.post(path=path[:-1] + "2")).status_code == 422, "another order under the same key"
    assert shop.count() == 4
    with shop.engine.connect() as connection:
        scopes = set(connection.scalars(select(idempotency.c.scope)))
    assert scopes == {f"POST {mount}{prefix}/{{size}}" for mount in ("", "/inner") for prefix in ("/pens", "/inks")}


async def test_a_session_of_the_test_takes_the_place_of_the_applications(shop: Shop):
    def broken() -> None:
        raise AssertionError("not this one")

    shop.app.dependency_overrides[broken] = shop.get_session
    shop.get_session = broken
    shop.serve()
    assert [(await shop.post()).status_code for _ in range(2)] == [201, 201]
    assert shop.count() == 1
