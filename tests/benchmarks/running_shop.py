"""A web service in a process of its own: one endpoint twice, with an idempotency key and without.

One line of JSON in: `Orders`. Then it says its port, and serves until its standard input ends.
"""

import asyncio
import gc
import json
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy import Identity, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outboxkit import event, outbox
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.runtime import process
from tests.support.statements_sent import StatementsSent


class Tables(DeclarativeBase):
    pass


class Order(Tables):
    __tablename__ = "benchmark_orders"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    customer: Mapped[str]


@event("OrderPlaced")
class OrderPlaced(BaseModel):
    order_id: int


class NewOrder(BaseModel):
    customer: str


@dataclass(frozen=True)
class Orders:
    """What the service is told.

    Attributes:
        database_url: with outboxkit's tables.
        trace: whether round trips to the database are counted.
    """

    database_url: str
    trace: bool = False


def application(orders: Orders) -> FastAPI:
    """The service: `/async/plain`, `/async/once`, `/sync/plain`, `/sync/once`, and `/round-trips`."""
    engine = process.engine(orders.database_url, name="benchmark shop", pool_size=2)
    sent = StatementsSent(engine) if orders.trace else None
    waiting = create_engine(orders.database_url, pool_size=2)
    Tables.metadata.create_all(waiting)
    open_async, open_sync = async_sessionmaker(engine, expire_on_commit=False), sessionmaker(waiting)

    async def async_session() -> AsyncIterator[AsyncSession]:
        async with open_async() as session:
            yield session

    def sync_session() -> Iterator[Session]:
        with open_sync() as session:
            yield session

    router, plain = APIRouter(route_class=IdempotentRoute), APIRouter()
    once_async = Depends(Idempotent(session=async_session, principal=None))
    once_sync = Depends(Idempotent(session=sync_session, principal=None))
    of_async, of_sync = Depends(async_session), Depends(sync_session)

    async def place(new: NewOrder, session: AsyncSession) -> dict[str, Any]:
        order = Order(customer=new.customer)
        session.add(order)
        await session.flush()
        outbox.add(session, OrderPlaced(order_id=order.id))
        return {"order_id": order.id}

    @router.post("/async/once", status_code=201, dependencies=[once_async])
    async def place_once(new: NewOrder, session: Annotated[AsyncSession, of_async]) -> dict[str, Any]:
        return await place(new, session)

    @plain.post("/async/plain", status_code=201)
    async def place_plainly(new: NewOrder, session: Annotated[AsyncSession, of_async]) -> dict[str, Any]:
        placed = await place(new, session)
        await session.commit()
        return placed

    def wait_and_place(new: NewOrder, session: Session) -> dict[str, Any]:
        order = Order(customer=new.customer)
        session.add(order)
        session.flush()
        outbox.add(session, OrderPlaced(order_id=order.id))
        return {"order_id": order.id}

    @router.post("/sync/once", status_code=201, dependencies=[once_sync])
    def wait_and_place_once(new: NewOrder, session: Annotated[Session, of_sync]) -> dict[str, Any]:
        return wait_and_place(new, session)

    @plain.post("/sync/plain", status_code=201)
    def wait_and_place_plainly(new: NewOrder, session: Annotated[Session, of_sync]) -> dict[str, Any]:
        placed = wait_and_place(new, session)
        session.commit()
        return placed

    @router.get("/round-trips")
    async def round_trips() -> int:
        return sent.round_trips() if sent is not None else 0

    app = FastAPI()
    app.include_router(router)
    app.include_router(plain)
    return app


async def main() -> None:
    """Serve until standard input ends."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits for an ACK
    server = uvicorn.Server(uvicorn.Config(application(orders), log_level="warning", access_log=False))
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    print(listening.getsockname()[1], flush=True)
    gc.collect()
    gc.freeze()
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
