"""Endpoints of FastAPI on PostgreSQL: sessions that are set up by listeners, and SQL that ends the transaction."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy import Engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import tables
from outboxkit.errors import TransactionRequired
from outboxkit.http.fastapi import Idempotent, IdempotentRoute


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
