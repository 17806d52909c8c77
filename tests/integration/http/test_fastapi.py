"""Idempotent endpoints behind a real server: many requests at once, answers that get lost, and the order of commit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy import Engine, event, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import tables
from outboxkit.errors import TransactionRequired
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from tests.integration.http.idempotent_server import Servers, serve
from tests.integration.http.idempotent_shop import Order
from tests.support.night import by_day_on

PATHS = ["/sync/orders", "/async/orders"]
AT_ONCE = 50


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Servers]:
    with serve(database_url, tmp_path / "calls") as started:
        started.start()
        yield started


@pytest.fixture
async def client(server: Servers) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as made:
        yield made


def order(customer: str = "ada", *, key: str = "k", user: str = "ada", **more: Any) -> dict[str, Any]:
    return {"json": {"customer": customer, **more}, "headers": {"Idempotency-Key": key, "X-User": user}}


def count(engine: Engine, table: Any = Order.__table__) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


@by_day_on("postgresql")
@pytest.mark.parametrize("path", PATHS)
async def test_many_requests_do_not_wait_for_each_other_in_a_circle(
    path: str, client: httpx.AsyncClient, engine: Engine
):
    """More than there are connections and threads: what has a connection must get a thread, too."""
    answers = await asyncio.gather(*(client.post(path, **order(key=f"{n}")) for n in range(2 * AT_ONCE)))
    assert Counter(a.status_code for a in answers) == {201: 2 * AT_ONCE}
    assert count(engine) == 2 * AT_ONCE


def caller(x_user: Annotated[str, Header()]) -> str:
    return x_user


async def test_a_remembered_error_is_written_by_a_session_that_is_set_up_like_the_endpoints_own(pg_engine: Engine):
    """Its tables are where a listener of the `sessionmaker` says: a session that it does not know finds none."""
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant_7"))
        connection.execute(text("ALTER TABLE outboxkit_idempotency RENAME TO away"))
        connection.execute(text("SET LOCAL search_path TO tenant_7"))
        tables.idempotency.create(connection)
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


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("kind", [Session, AsyncSession])
async def test_sql_that_ends_the_transaction_is_told_and_leaves_the_key_free(
    pg_engine: Engine, async_pg_engine: AsyncEngine, kind: type[Session | AsyncSession], ends: str
):
    async def get_session() -> AsyncIterator[Session | AsyncSession]:
        if kind is AsyncSession:
            async with AsyncSession(async_pg_engine) as session:
                yield session
        else:
            with Session(pg_engine) as plain:
                yield plain

    app = FastAPI()
    app.router.route_class = IdempotentRoute

    @app.post("/ends", dependencies=[Depends(Idempotent(session=get_session, principal=caller))])
    async def ending(session: Annotated[Any, Depends(get_session)], *, do: bool) -> None:
        if do and isinstance(session, AsyncSession):
            await session.execute(text(ends))
        elif do:
            session.execute(text(ends))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        headers = {"X-User": "ada", "Idempotency-Key": "k"}
        text_of_error = "by a COMMIT" if ends == "COMMIT" else "is not open in this transaction"
        with pytest.raises(TransactionRequired, match=text_of_error):
            await client.post("/ends?do=1", headers=headers)
        assert (await client.post("/ends?do=0", headers=headers)).status_code == 200
