"""The outbox behind Flask-SQLAlchemy and SQLModel, and the page's relay in a web server whose broker is away."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel import SQLModel
from sqlmodel.ext.asyncio.session import AsyncSession

from outboxkit import event, outbox, tables
from tests.support.pages import blocks
from tests.support.polling import eventually

PAGE = "docs/how-to/run-in-web-application.md"


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@event("Shipped")
class Shipped(SQLModel):
    number: int


def payloads(engine: Engine) -> list[bytes]:
    with engine.connect() as connection:
        return list(connection.scalars(select(tables.outbox.c.payload).order_by(tables.outbox.c.position)))


def flask_shop(database_url: str) -> tuple[Flask, SQLAlchemy]:
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=database_url, SQLALCHEMY_BINDS={"other": "sqlite://"})
    db = SQLAlchemy(app)

    @app.post("/<int:number>/<end>")
    def order(number: int, end: str) -> str:
        outbox.add(db.session, Ordered(number))
        getattr(db.session, end)()
        return "ordered"

    return app, db


def test_flask_sqlalchemys_session(database_url: str, engine: Engine) -> None:
    app, db = flask_shop(database_url)
    client = app.test_client()
    assert client.post("/1/commit").status_code == client.post("/2/rollback").status_code == 200
    assert payloads(engine) == [b'{"number":1}']
    with app.app_context():
        message = outbox.add(db.session, Ordered(3))
        db.session.commit()
        assert outbox.cancel(db.session, message.id)
        db.session.commit()
        for made in db.engines.values():
            made.dispose()
    assert payloads(engine) == [b'{"number":1}']


async def test_sqlmodels_async_session(database_url: str, engine: Engine) -> None:
    made = create_async_engine(database_url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(made) as session:
        outbox.add_all(session, [Ordered(1), Shipped(number=2)])
        await session.commit()
        outbox.add(session, Ordered(3))
        await session.rollback()
    await made.dispose()
    assert payloads(engine) == [b'{"number":1}', b'{"number":2}']


@pytest.fixture
def server(tmp_path: Path, postgresql_url: str) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """The page's application in uvicorn, with a broker that is away; its address and its log."""
    for page in ("docs/tutorial.md", PAGE):
        for block in blocks(page):
            if block.kind == "file":
                (tmp_path / block.path).parent.mkdir(exist_ok=True)
                (tmp_path / block.path).write_text(block.body)
    urls = {"OUTBOXKIT_DATABASE_URL": postgresql_url, "OUTBOXKIT_BROKER_URL": "amqp://guest:guest@127.0.0.1:1/"}
    environment = {**os.environ, **urls}
    create = "from shop.models import Base, engine; Base.metadata.create_all(engine)"
    subprocess.run([sys.executable, "-c", create], cwd=tmp_path, env=environment, check=True)
    log = tmp_path / "web.log"
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, log.open("w") as file:
        command = [sys.executable, "-m", "uvicorn", "shop.web:app", "--fd", str(listener.fileno())]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=file, stderr=file, pass_fds=[listener.fileno()]
        )
        yield process, f"http://127.0.0.1:{listener.getsockname()[1]}", log
        process.kill()
        process.wait()


def test_an_outage_of_the_broker_stops_neither_the_application_nor_its_end(
    server: tuple[subprocess.Popen[bytes], str, Path], pg_engine: Engine
) -> None:
    process, address, log = server
    assert httpx.post(f"{address}/orders", timeout=60).json() == "confirmed"
    eventually(lambda: "away" in log.read_text())
    assert httpx.post(f"{address}/orders", timeout=60).json() == "confirmed"
    process.terminate()
    process.wait(60)
    assert "relay stopped" in log.read_text()
    assert "Application shutdown complete" in log.read_text()
    assert len(payloads(pg_engine)) == 2
