"""A shop with idempotent endpoints, as tests serve it: sync and async ones, atomic and in steps, on one database."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import event as outbox_event
from outboxkit import outbox
from outboxkit.http import asgi
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.runtime import process
from tests.integration.http.flask_shop import engine_for
from tests.support.polling import eventually_async


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
    customer: str = Field(min_length=1)


def nothing(place: str) -> None:
    """What happens at a place of the code: nothing."""


def current_user(x_user: Annotated[str | None, Header()] = None) -> str:
    if not x_user:
        raise HTTPException(401)
    return x_user


def make(url: str, *, calls: Path | None = None, at: Callable[[str], None] = nothing, **rules: Any) -> FastAPI:
    """The application.

    Args:
        url: of a database with the tables of the package and of `Tables`.
        calls: the file that stands for an outside system: a line for each call, the key of the call.
        at: called between the steps.
        rules: of every endpoint; a lease is of those in steps.
    """
    in_steps_only = {"lease": rules.pop("lease")} if "lease" in rules else {}
    app = FastAPI()
    app.router.route_class = IdempotentRoute
    engine, async_engine = engine_for(url), process.engine(url, name="shop", pool_size=20)
    app.state.engine, app.state.async_engine = engine, async_engine

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    async def get_async_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(async_engine) as session:
            yield session

    sync_rule = Idempotent(session=get_session, principal=current_user, **rules)
    async_rule = Idempotent(session=get_async_session, principal=current_user, **rules)

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
        return await in_steps(request, new)

    async def in_steps(request: Request, new: NewOrder) -> Any:
        async def charge() -> str:
            at("before the call")
            await held(request.headers.get("x-gate"))
            call_outside(calls, asgi.steps().key("charge"))
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
        **in_steps_only,
    )
    return app


def act(session: Any, new: NewOrder) -> Order:
    """Add the order, and its message."""
    order = Order(customer=new.customer)
    session.add(order)
    outbox.add(session, OrderPlaced(new.customer))
    return order


@event.listens_for(Session, "after_flush")
def check_constraints(session: Session, _: object) -> None:
    """Have deferred constraints checked before the end of a request for the customer "check"."""
    if any(getattr(each, "customer", "") == "check" for each in session.new):
        session.connection().exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")


async def held(gate: str | None) -> None:
    """Wait until there is a file of this name, and say by another one that somebody waits."""
    if gate is not None:
        Path(f"{gate}.reached").touch()
        await eventually_async(lambda: asyncio.to_thread(Path(gate).exists))


def call_outside(calls: Path | None, key: str) -> None:
    if calls is not None:
        with calls.open("ab", buffering=0) as file:
            file.write(key.encode() + b"\n")
            os.fsync(file.fileno())
