"""Duplicates that wait for the first request: they are few, and nobody else waits behind them."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from tests.integration.http.flask_shop import serving
from tests.support.polling import eventually, eventually_async

DUPLICATES, WAITING = 45, 10
LONG = timedelta(minutes=5)


def caller(x_user: Annotated[str, Header()]) -> str:
    return x_user


def a_shop(get_session: Callable[..., Any], entered: threading.Event, go_on: threading.Event) -> FastAPI:
    app = FastAPI()
    app.router.route_class = IdempotentRoute
    rule = Depends(Idempotent(session=get_session, principal=caller, wait=LONG))

    @app.post("/slow", dependencies=[rule])
    async def slow(session: Annotated[Any, Depends(get_session)]) -> str:
        entered.set()
        await asyncio.to_thread(go_on.wait, 60)
        return "done"

    @app.post("/quick", dependencies=[rule])
    def quick(session: Annotated[Any, Depends(get_session)]) -> str:
        return "done"

    return app


@pytest.fixture(params=["sync", "async"])
def get_session(
    request: pytest.FixtureRequest, postgresql_url: str, async_pg_engine: AsyncEngine
) -> Iterator[Callable[..., Any]]:
    engine = create_engine(postgresql_url, pool_size=20)

    def get_one() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    async def get_async() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(async_pg_engine) as session:
            yield session

    yield get_one if request.param == "sync" else get_async
    engine.dispose()


async def test_duplicates_of_one_caller_hold_up_nobody_in_fastapi(get_session: Callable[..., Any], pg_engine: Engine):
    entered, go_on = threading.Event(), threading.Event()
    transport = httpx.ASGITransport(a_shop(get_session, entered, go_on))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as client:

        async def post(path: str, user: str, key: str = "k") -> httpx.Response:
            return await client.post(path, headers={"X-User": user, "Idempotency-Key": key})

        first = asyncio.create_task(post("/slow", "eve"))
        assert await asyncio.to_thread(entered.wait, 60)
        others = [asyncio.create_task(post("/slow", "eve")) for _ in range(DUPLICATES)]
        try:
            async with asyncio.timeout(30):
                assert (await post("/quick", "bob")).status_code == 200
            refused = await eventually_async(
                lambda: asyncio.sleep(0, [task.result() for task in others if task.done()]),
                lambda done: len(done) == DUPLICATES - WAITING,
            )
            assert {(a.status_code, a.headers["retry-after"]) for a in refused} == {(409, "1")}
            assert (await post("/quick", "eve", "another")).status_code == 200, "not even eve's own other requests"
            assert not first.done()
        finally:
            go_on.set()
        answers = await asyncio.gather(first, *others)
    replays = [a.headers.get("idempotency-replayed") for a in answers if a.status_code == 200]
    assert Counter(replays) == {None: 1, "true": WAITING}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_duplicates_of_one_caller_hold_up_nobody_in_flask(database_url: str):
    with serving(database_url) as (shop, url), ThreadPoolExecutor(DUPLICATES + 1) as threads:

        def post(path: str, user: str, **more: Any) -> httpx.Response:
            return httpx.post(url + path, headers={"X-User": user, "Idempotency-Key": "k"}, timeout=60, **more)

        first = threads.submit(post, "/held", "eve")
        assert shop.entered.wait(60)
        others = [threads.submit(post, "/held", "eve") for _ in range(DUPLICATES)]
        try:
            refused = eventually(
                lambda: [one.result() for one in others if one.done()], lambda done: len(done) == DUPLICATES - WAITING
            )
            assert {(a.status_code, a.headers["retry-after"]) for a in refused} == {(409, "1")}
            assert post("/orders", "bob", json={"customer": "bob"}).status_code == 201
            assert not first.done()
        finally:
            shop.go_on.set()
        answers = [first.result(), *(one.result() for one in others)]
    assert Counter(a.headers.get("idempotency-replayed") for a in answers if a.status_code == 201) == {
        None: 1,
        "true": WAITING,
    }


async def test_a_remembered_error_is_written_by_a_session_that_is_set_up_like_the_endpoints_own(pg_engine: Engine):
    """Its tables are where a listener of the `sessionmaker` says: a session that it does not know finds none."""
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant_7"))
        connection.execute(text("ALTER TABLE outboxkit_idempotency SET SCHEMA tenant_7"))
    sessions = sessionmaker(pg_engine, info={"tenant": "tenant_7"})

    @event.listens_for(sessions, "after_begin")
    def choose(session: Session, _: object, connection: Any) -> None:
        connection.execute(text(f"SET LOCAL search_path TO {session.info['tenant']}, public"))

    def get_one() -> Iterator[Session]:
        with sessions.begin() as session:
            yield session

    app = FastAPI()
    app.router.route_class = IdempotentRoute

    @app.post("/sold-out", dependencies=[Depends(Idempotent(session=get_one, principal=caller))])
    def sold_out(session: Annotated[Session, Depends(get_one)]) -> None:
        raise HTTPException(409, "sold out")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        headers = {"X-User": "ada", "Idempotency-Key": "k"}
        answers = [await client.post("/sold-out", headers=headers) for _ in range(2)]
    assert [(a.status_code, a.headers.get("idempotency-replayed")) for a in answers] == [(409, None), (409, "true")]
