"""An application with one idempotent endpoint that does what its test says, on a SQLite file."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from tests.unit.shop import effects


class Order(BaseModel):
    item: str


def caller(x_user: Annotated[str | None, Header()] = None) -> str:
    if x_user is None:
        raise HTTPException(401)
    return x_user


@dataclass
class Shop:
    """The application, with the session of its endpoint, and a client.

    Attributes:
        act: what the endpoint does with its session and its order; its result is the answer.
    """

    app: FastAPI
    engine: Engine
    get_session: Callable[..., Any]
    act: Callable[[Any, Order], Any] = lambda session, order: {"done": order.item}
    runs: list[str] = field(default_factory=list)

    def serve(self, **rules: Any) -> None:
        idempotent = Idempotent(session=self.get_session, **{"principal": caller, **rules})

        @self.app.post("/orders", status_code=201, dependencies=[Depends(idempotent)])
        def place(order: Order, session: Annotated[Any, Depends(self.get_session)]) -> Any:
            self.runs.append(order.item)
            session.execute(effects.insert().values(what=order.item))
            return self.act(session, order)

    async def post(
        self,
        item: Any = "pen",
        *,
        key: str | None = "k",
        path: str = "/orders",
        method: str = "POST",
        raising: bool = False,
        **options: Any,
    ):
        headers = {"X-User": "ada"} | ({} if key is None else {"Idempotency-Key": key}) | options.pop("headers", {})
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=raising)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.request(method, path, **{"json": {"item": item}, **options}, headers=headers)

    def count(self) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(effects)) or 0


@pytest.fixture
def shop(engine: Engine) -> Shop:
    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    app = FastAPI()
    app.router.route_class = IdempotentRoute
    return Shop(app, engine, get_session)


@pytest.fixture
def begun_shop(shop: Shop) -> Shop:
    """Its session comes from `sessionmaker.begin()`, which commits by itself."""
    factory = sessionmaker(shop.engine)

    def get_session() -> Iterator[Session]:
        with factory.begin() as session:
            yield session

    shop.get_session = get_session
    return shop


@pytest.fixture
def get_async_session(async_engine: AsyncEngine) -> Callable[[], AsyncIterator[AsyncSession]]:
    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(async_engine) as session:
            yield session

    return get_session
