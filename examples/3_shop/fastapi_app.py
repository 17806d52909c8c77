"""The shop's HTTP API with FastAPI: asynchronous from the request to the database."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from decimal import Decimal
from http import HTTPStatus
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from shop.database import URL
from shop.events import ChargeCard
from shop.orders import MONEY, NAME, Order, Refused, order_number
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from starlette.exceptions import HTTPException as AnyHTTPException

from outboxkit import outbox
from outboxkit.http.fastapi import Idempotent, IdempotentRoute, add_problem_handlers
from outboxkit.http.preconditions import check_if_match, etag
from outboxkit.runtime import process

PROBLEM = "application/problem+json"

engine = process.engine(URL, name="shop", pool_size=10)
sessions = async_sessionmaker(engine, expire_on_commit=False)


async def get_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session


def current_user(x_user: Annotated[str | None, Header(description="the caller's name")] = None) -> str:
    if not x_user or len(x_user) > 255:
        raise HTTPException(401, "name yourself in the header X-User", {"WWW-Authenticate": "X-User"})
    return x_user


idempotent = Idempotent(session=get_session, principal=current_user)

Session = Annotated[AsyncSession, Depends(get_session)]
User = Annotated[str, Depends(current_user)]
IfMatch = Annotated[list[str] | None, Header(description="the ETag of the version that was read")]
Money = Annotated[str, Field(pattern=f"^{MONEY}$", examples=["19.80"])]
Name = Annotated[str, Field(pattern=f"^{NAME}$", examples=["Ada"])]


class NewOrder(BaseModel):
    customer: Name
    total: Money


class Payment(BaseModel):
    amount: Money


class Change(BaseModel):
    customer: Name


class Shown(BaseModel):
    order_id: int
    customer: str
    total: str
    status: str


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "object", "properties": {"detail": {"type": "string"}}}
    return {s: {"description": HTTPStatus(s).phrase, "content": {PROBLEM: {"schema": schema}}} for s in statuses}


router = APIRouter(prefix="/orders", route_class=IdempotentRoute, responses=refusals(401, 422))


@router.post("", status_code=201, response_model=Shown, dependencies=[Depends(idempotent)])
async def place(new: NewOrder, response: Response, session: Session, user: User) -> dict[str, object]:
    order = Order(user=user, customer=new.customer, cents=int(Decimal(new.total).scaleb(2)))
    session.add(order)
    await session.flush()  # the database gives it its id
    response.headers["Location"] = f"/orders/{order.id}"
    return shown(order, response)


@router.get("/{order_id}", response_model=Shown, responses=refusals(404))
async def show(order_id: str, response: Response, session: Session, user: User) -> dict[str, object]:
    return shown(await find(session, order_id, user), response)


@router.post("/{order_id}/pay", response_model=Shown, responses=refusals(404, 409), dependencies=[Depends(idempotent)])
async def pay(order_id: str, payment: Payment, response: Response, session: Session, user: User) -> dict[str, object]:
    order = await find(session, order_id, user, lock=True)
    if order.pay(Decimal(payment.amount)):
        outbox.add(session, ChargeCard(order.id, order.total), key=f"order-{order.id}")
    await session.flush()
    return shown(order, response)


@router.patch("/{order_id}", response_model=Shown, responses=refusals(400, 404, 409, 412, 428))
async def change(
    order_id: str, changes: Change, response: Response, session: Session, user: User, if_match: IfMatch = None
) -> dict[str, object]:
    order = await find(session, order_id, user)
    check_if_match(if_match, order)
    order.change(changes.customer)
    await session.commit()
    return shown(order, response)


async def find(session: AsyncSession, order_id: str, user: str, *, lock: bool = False) -> Order:
    number = order_number(order_id)
    order = await session.get(Order, number, with_for_update=lock) if number is not None else None
    if order is None or order.user != user:
        raise HTTPException(404, f"you have no order {order_id!r}")
    return order


def shown(order: Order, response: Response) -> dict[str, object]:
    response.headers["ETag"] = etag(order)
    return order.shown()


def problem(status: int, detail: object, headers: Mapping[str, str] | None = None) -> Response:
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(document, status, headers, PROBLEM)


async def explain(_: Request, error: AnyHTTPException) -> Response:
    return problem(error.status_code, error.detail, error.headers)


async def explain_invalid(_: Request, error: RequestValidationError) -> Response:
    wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return problem(422, "; ".join(wrong))


async def explain_refused(_: Request, error: Refused) -> Response:
    return problem(409, str(error))


app = FastAPI(title="Shop", description="Orders, and a card that is charged once.")
app.include_router(router)
app.add_exception_handler(AnyHTTPException, explain)
app.add_exception_handler(RequestValidationError, explain_invalid)
app.add_exception_handler(Refused, explain_refused)
add_problem_handlers(app)


async def serve(listening: socket.socket, stop: asyncio.Event) -> None:
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=5))
    server.capture_signals = nullcontext  # they are heard by `process.run`
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve([listening]))
        await stop.wait()
        server.should_exit = True
    await engine.dispose()
