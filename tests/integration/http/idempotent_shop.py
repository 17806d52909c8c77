"""A shop with idempotent endpoints, in FastAPI and in Flask: sync and async ones, atomic and in steps."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import flask
from fastapi import Depends, FastAPI, Header, Request
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outboxkit import event as outbox_event
from outboxkit import outbox
from outboxkit.http import asgi
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.http.flask import Idempotent as FlaskIdempotent

LEASE = timedelta(minutes=10)


class Tables(DeclarativeBase):
    pass


class Order(Tables):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


@outbox_event("OrderPlaced")
@dataclass(frozen=True)
class OrderPlaced:
    customer: str


class NewOrder(BaseModel):
    customer: str


def current_user(x_user: Annotated[str, Header()]) -> str:
    return x_user


def make(engine: Engine, async_engine: AsyncEngine, *, calls: Path, at: Callable[[str], None]) -> FastAPI:
    """The application in FastAPI.

    Args:
        engine: of a database with the tables of the package and of `Tables`, and `async_engine` of the same.
        calls: the file that stands for an outside system: a line for each call, the key of the call.
        at: called between the steps.
    """
    app = FastAPI()
    app.router.route_class = IdempotentRoute

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    async def get_async_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(async_engine) as session:
            yield session

    sync_rule = Idempotent(session=get_session, principal=current_user)
    async_rule = Idempotent(session=get_async_session, principal=current_user)

    @app.post("/sync/orders", status_code=201, dependencies=[Depends(sync_rule)])
    def place(new: NewOrder, session: Annotated[Session, Depends(get_session)]):
        order = act(session, new)
        session.flush()
        return {"order_id": order.id}

    @app.post("/async/orders", status_code=201)
    async def place_async(
        new: NewOrder,
        session: Annotated[AsyncSession, Depends(get_async_session)],
        _: Annotated[None, Depends(async_rule)],
    ):
        order = act(session, new)
        await session.flush()
        return {"order_id": order.id}

    @app.post("/steps/orders", status_code=201)
    async def place_in_steps(new: NewOrder, request: Request):
        async def charge() -> str:
            at("before the call")
            with calls.open("ab", buffering=0) as file:
                file.write(asgi.steps().key("charge").encode() + b"\n")
                os.fsync(file.fileno())
            at("after the call")
            return "charged"

        async def keep() -> int:
            order = Order(id=int(request.headers["x-order"]), customer=new.customer)
            async with AsyncSession(async_engine) as session, session.begin():
                await session.merge(order)
                return order.id

        charged = await asgi.step("charge", charge)
        at("between the steps")
        number = await asgi.step("keep", keep)
        at("after the steps")
        return {"order_id": number, "state": charged}

    app.add_middleware(
        asgi.IdempotencyMiddleware,
        session_factory=async_sessionmaker(async_engine),
        principal=lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode(),
        when=lambda scope: scope["path"].startswith("/steps"),
        lease=LEASE,
    )
    return app


def make_flask(engine: Engine) -> flask.Flask:
    """The application in Flask, with an atomic endpoint alone."""
    sessions = scoped_session(sessionmaker(engine))
    app = flask.Flask(__name__)
    app.teardown_appcontext(lambda _: sessions.remove())

    @app.post("/orders")
    @FlaskIdempotent(session=sessions, principal=lambda: flask.request.headers["X-User"])
    def place() -> Any:
        order = act(sessions, NewOrder(**flask.request.get_json()))
        sessions.flush()
        return {"order_id": order.id}, 201

    return app


def act(session: Any, new: NewOrder) -> Order:
    """Add the order, and its message."""
    order = Order(customer=new.customer)
    session.add(order)
    outbox.add(session, OrderPlaced(new.customer))
    return order


def engine_for(url: str) -> Engine:
    """As an application has it; on SQLite every transaction takes the writer lock at its start."""
    if not url.startswith("sqlite"):
        return create_engine(url, pool_size=20)
    engine = create_engine(url, connect_args={"timeout": 60})

    @event.listens_for(engine, "connect")
    def _settle_in(connection: Any, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
