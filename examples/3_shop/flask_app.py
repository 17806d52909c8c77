"""The shop's HTTP API with Flask: threads and plain sessions."""

import asyncio
import logging
import socket
import threading
from decimal import Decimal
from typing import Annotated, TypeVar

import msgspec
from flask import Blueprint, Flask, Response, abort, jsonify, request
from shop.database import ON_SQLITE, URL
from shop.events import ChargeCard
from shop.orders import MONEY, NAME, Order, Refused, order_number
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.orm import scoped_session, sessionmaker
from werkzeug.exceptions import Conflict, HTTPException
from werkzeug.serving import make_server

from outboxkit import outbox
from outboxkit.http.flask import Idempotent, add_problem_handlers
from outboxkit.http.preconditions import check_if_match, etag

Money = Annotated[str, msgspec.Meta(pattern=rf"^{MONEY}\Z")]
Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME}\Z")]
T = TypeVar("T")


def connect(url: str) -> Engine:
    if not ON_SQLITE:
        return create_engine(make_url(url).set(drivername="postgresql+psycopg"), pool_size=10)
    engine = create_engine(make_url(url).set(drivername="sqlite"), connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def settle_in(connection, _) -> None:
        connection.isolation_level = None  # the driver would begin only before the first write
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


engine = connect(URL)
session = scoped_session(sessionmaker(engine, expire_on_commit=False))


class NewOrder(msgspec.Struct):
    customer: Name
    total: Money


class Payment(msgspec.Struct):
    amount: Money


class Change(msgspec.Struct):
    customer: Name


def current_user() -> str:
    user = request.headers.get("X-User", "")
    if not 0 < len(user) <= 255:
        abort(401, "name yourself in the header X-User")
    return user


def body(kind: type[T]) -> T:
    try:
        return msgspec.json.decode(request.get_data(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        abort(422, str(error))


idempotent = Idempotent(session=session, principal=current_user)
shop = Blueprint("shop", __name__)


@shop.post("/orders")
@idempotent
def place() -> Response:
    new = body(NewOrder)
    order = Order(user=current_user(), customer=new.customer, cents=int(Decimal(new.total).scaleb(2)))
    session.add(order)
    session.flush()  # the database gives it its id
    return shown(order, 201, Location=f"/orders/{order.id}")


@shop.get("/orders/<order_id>")
def show(order_id: str) -> Response:
    return shown(find(order_id))


@shop.post("/orders/<order_id>/pay")
@idempotent
def pay(order_id: str) -> Response:
    payment = body(Payment)
    order = find(order_id, lock=True)
    if order.pay(Decimal(payment.amount)):
        outbox.add(session, ChargeCard(order.id, order.total), key=f"order-{order.id}")
    session.flush()
    return shown(order)


@shop.patch("/orders/<order_id>")
def change(order_id: str) -> Response:
    current_user()
    changes = body(Change)
    order = find(order_id)
    check_if_match(request.headers.getlist("If-Match"), order)
    order.change(changes.customer)
    session.commit()
    return shown(order)


def find(order_id: str, *, lock: bool = False) -> Order:
    user, number = current_user(), order_number(order_id)
    order = session.get(Order, number, with_for_update=lock) if number is not None else None
    if order is None or order.user != user:
        abort(404, f"you have no order {order_id!r}")
    return order


def shown(order: Order, status: int = 200, **headers: str) -> Response:
    response = jsonify(order.shown())
    response.status_code = status
    response.headers.update({"ETag": etag(order), **headers})
    return response


def explain(error: HTTPException) -> Response:
    if error.code is None or error.code < 400:
        return error.get_response()
    response = jsonify(type="about:blank", title=error.name, status=error.code, detail=error.description)
    response.status_code, response.mimetype = error.code, "application/problem+json"
    if error.code == 401:
        response.headers["WWW-Authenticate"] = "X-User"
    return response


def refuse(error: Refused) -> Response:
    return explain(Conflict(str(error)))


app = Flask(__name__)
app.json.sort_keys = False
app.register_blueprint(shop)
app.register_error_handler(HTTPException, explain)
app.register_error_handler(Refused, refuse)
add_problem_handlers(app)


@app.teardown_appcontext
def forget(_: BaseException | None) -> None:
    session.remove()


async def serve(listening: socket.socket, stop: asyncio.Event) -> None:
    """The web server has threads; the event loop is for the workers beside it."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # no line for each request
    host, port = listening.getsockname()
    server = make_server(host, port, app, threaded=True, fd=listening.fileno())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    await stop.wait()
    await asyncio.to_thread(server.shutdown)
    engine.dispose()
