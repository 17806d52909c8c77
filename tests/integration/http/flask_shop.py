"""A small shop in Flask, and its server in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flask import Flask, abort, request
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from werkzeug.serving import WSGIRequestHandler, make_server

import outboxkit
from outboxkit import outbox
from outboxkit.http import preconditions
from outboxkit.http.flask import Idempotent, add_problem_handlers


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


@outboxkit.event("OrderPlaced")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int


class Shop:
    """The application, and what a test does to it from outside."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = scoped_session(sessionmaker(engine))
        self.calls = 0
        self.app = Flask(__name__)
        self.app.teardown_appcontext(lambda _: self.sessions.remove())
        add_problem_handlers(self.app)
        _ordering(self)
        _changing(self)

    def idempotent(self, **options: Any) -> Idempotent:
        return Idempotent(session=self.sessions, principal=lambda: request.headers.get("X-User", "alice"), **options)

    def place(self, customer: str) -> Order:
        session = self.sessions()
        order = Order(customer=customer)
        session.add(order)
        session.flush()
        outbox.add(session, OrderPlaced(order.id))
        return order


def _ordering(shop: Shop) -> None:
    app, idempotent = shop.app, shop.idempotent()

    @app.post("/orders")
    @idempotent
    def post_order() -> Any:
        shop.calls += 1
        order = shop.place(request.get_json()["customer"])
        return {"order_id": order.id}, 201, {"ETag": preconditions.etag(order)}


def _changing(shop: Shop) -> None:
    @shop.app.patch("/orders/<int:order_id>")
    @shop.idempotent()
    def change(order_id: int) -> Any:
        order = shop.sessions.get(Order, order_id) or abort(404)
        preconditions.check_if_match(request.headers.getlist("If-Match"), order)
        if request.headers.get("X-Act") == "race":
            overtake(order_id)
        order.customer = request.get_json()["customer"]
        shop.sessions.flush()
        return {"version": order.version}, 200, {"ETag": preconditions.etag(order)}

    def overtake(order_id: int) -> None:
        with Session(shop.engine) as session, session.begin():
            other = session.get_one(Order, order_id)
            other.customer = "somebody else"

    @shop.app.put("/orders/<int:order_id>")
    def replace(order_id: int) -> Any:
        order = shop.sessions.get(Order, order_id) or abort(404)
        preconditions.check_if_match(request.headers.getlist("If-Match"), order)
        if request.headers.get("X-Act") == "race":
            overtake(order_id)
        order.customer = request.get_json()["customer"]
        shop.sessions.commit()
        return "", 204, {"ETag": preconditions.etag(order)}


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


class Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        pass


@contextmanager
def serving(url: str) -> Iterator[tuple[Shop, str]]:
    """A shop behind a threaded server of this process, and where it is."""
    engine = engine_for(url)
    Model.metadata.create_all(engine)
    shop = Shop(engine)
    shop.app.logger.disabled = True
    server = make_server("127.0.0.1", 0, shop.app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield shop, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        engine.dispose()
