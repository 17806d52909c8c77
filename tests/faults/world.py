"""Two servers, a service of somebody else, and one application, with a tripwire in front of each."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, make_url, select
from sqlalchemy.orm import Session

from outboxkit import ids
from tests.acceptance.worker_process import WorkerProcess
from tests.faults import shop
from tests.faults.tripwire import Tripwire
from tests.processes import COMMAND, ROOT
from tests.servers import OwnServer, Server, create_database, drop_database
from tests.servers.ports import free_row
from tests.support.databases import migrate
from tests.support.plain_client import PlainClient, keyed

MESSAGES = 2
"""Of one key, in one transaction."""
SETTINGS = {
    "OUTBOXKIT_RETRY_DELAYS": "100ms,200ms",
    "OUTBOXKIT_MAX_ATTEMPTS": "2",
    "OUTBOXKIT_PUBLISH_TIMEOUT": "2s",
    "OUTBOXKIT_PUBLISHED_RETENTION": "7d",
    "OUTBOXKIT_LOG_LEVEL": "debug",
}


class OutsideService:
    """A service of somebody else, which does a thing once for each `Idempotency-Key` and notes each request."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.port = free_row(1)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                requests.append(self.headers["Idempotency-Key"].strip('"'))
                body = json.dumps({"subject": self.headers["Idempotency-Key"]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def kill(self) -> None:
        """Take no connections any more; the tripwire has ended the one that matters."""
        self._server.shutdown()
        self._server.server_close()


@dataclass
class World:
    """Two servers, a tripwire in front of each, and one application."""

    database: Server
    broker: OwnServer
    url: str
    logs: Path
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.engine = create_engine(self.url)
        shop.Tables.metadata.create_all(self.engine)
        self.client = PlainClient(self.broker.url)
        self.client.declare_exchange()
        self.wires, self.urls = dict[str, Tripwire](), dict[str, str]()
        self.outside = OutsideService()
        self.direct = {
            "OUTBOXKIT_DATABASE_URL": self.url,
            "OUTBOXKIT_BROKER_URL": self.broker.url,
            "OUTSIDE_URL": self.outside.url,
        }
        for wire, (name, url) in zip(("postgresql", "amqp", "http"), self.direct.items(), strict=True):
            target = make_url(url)
            self.wires[wire] = Tripwire(wire, target.host or "localhost", target.port or 0)
            through = target.set(host="127.0.0.1", port=self.wires[wire].port)
            self.urls[name] = through.render_as_string(hide_password=False)
        self.mended, self.port = self.logs / "mended", free_row(1)
        self.processes: list[WorkerProcess] = []

    def start(self, *arguments: str, through: bool = False, **more: str) -> WorkerProcess:
        """Start a command; `through` the tripwires, or straight to the servers."""
        environment = {
            **SETTINGS,
            "PYTHONPATH": str(ROOT),
            **(self.direct | self.urls if through else self.direct),
            "OUTBOXKIT_EXCHANGE": self.client.exchange,
            "SOAK_MENDED": str(self.mended),
            **more,
        }
        log = self.logs / f"{next(self.numbers)}-{arguments[0].rpartition('/')[2]}.log"
        self.processes.append(WorkerProcess(arguments, environment, log))
        return self.processes[-1]

    def run(self, *arguments: str) -> None:
        """Run a command of outboxkit to its end."""
        process = self.start(COMMAND, *arguments)
        assert process.wait() == 0, process.log.read_text()

    def queue(self, name: str) -> str:
        return self.client.own(f"{self.client.queue}.{name}")

    def server(self, wire: str) -> Server | OutsideService:
        """The server behind a tripwire."""
        return {"postgresql": self.database, "amqp": self.broker, "http": self.outside}[wire]

    def add(self, subject: str, event: Callable[[str], shop.Added] = shop.StepTaken) -> list[str]:
        """Messages of one key in one transaction; their ids."""
        with Session(self.engine) as session, session.begin():
            for number in range(MESSAGES):
                shop.add(session, event(f"{subject} {number}"), key=subject, step=number)
        return self.ids(subject)

    def send(self, subject: str, event: Callable[[str], shop.Added]) -> list[str]:
        """Messages of one key, as a relay has published them; their ids."""
        made, sent = [event(f"{subject} {number}") for number in range(MESSAGES)], list[tuple[bytes, dict[str, Any]]]()
        type_ = type(made[0]).__name__
        with Session(self.engine) as session, session.begin():
            for step, each in enumerate(made):
                id_ = str(ids.new())
                session.add(shop.Made(message_id=id_, type=type_, subject=each.subject, key=subject, step=step))
                properties = {"message_id": id_, "type": type_, "headers": keyed(subject), "delivery_mode": 2}
                sent.append((json.dumps({"subject": each.subject}).encode(), properties))
        self.client.publish_all(sent, topic=type_)
        return self.ids(subject)

    def ids(self, subject: str) -> list[str]:
        """The ids of its messages, in order."""
        made = select(shop.Made.message_id).where(shop.Made.key == subject).order_by(shop.Made.at, shop.Made.step)
        with Session(self.engine) as session:
            return list(session.scalars(made))

    def effects(self, ids: list[str], handler: str) -> list[str]:
        """The ids of those that the handler has handled, in the order of its rows."""
        rows = select(shop.Effect.message_id).where(shop.Effect.message_id.in_(ids), shop.Effect.handler == handler)
        with Session(self.engine) as session:
            return list(session.scalars(rows.order_by(shop.Effect.id)))

    def rows(self, table: Any, *where: Any) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(table).where(*where)) or 0

    def forget(self) -> None:
        """The connections of the test itself, which have ended."""
        self.engine.dispose()
        self.client.disconnect()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.engine.dispose()
        self.outside.kill()
        for wire in self.wires.values():
            wire.close()
        self.client.clean_up(SETTINGS["OUTBOXKIT_RETRY_DELAYS"].split(","))


@contextmanager
def world(database: Server, broker: OwnServer, logs: Path) -> Iterator[World]:
    """A world with a database of its own."""
    name = f"outboxkit_matrix_{abs(hash(logs))}"
    url = create_database(database.url, name)
    migrate(url)
    made = World(database, broker, url, logs)
    try:
        yield made
    finally:
        made.close()
        drop_database(database.url, name)
