"""A database, an exchange and a queue, and the processes that work on them."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, func, make_url, select, text
from sqlalchemy.orm import Session

from outboxkit import tables
from tests.acceptance.shop import Effect, Tables
from tests.acceptance.worker_process import WorkerProcess
from tests.processes import COMMAND, ROOT, run_to_end
from tests.support.delays import DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually
from tests.support.tcp_proxy import TcpProxy

HANDLERS = "tests.acceptance.shop"
PROGRAMS = {
    "workers": {name: [sys.executable, f"workers/{name}.py"] for name in ("relay", "consumer", "retention")},
    "outboxkit": {"relay": [COMMAND, "relay"], "consumer": [COMMAND, "consume"]},
}
"""Both ways to start a worker: the composition roots that people copy, and the command line."""

UNEXPECTED = frozenset(
    (
        "a batch failed unexpectedly, its messages are handled singly",
        "a message can be neither handled nor set aside, and is given back",
        "dispatching deliveries failed, connecting again",
        "unexpected error, the relay goes on",
    )
)
"""Lines in the log of errors of outboxkit's own, which its processes survive."""
LAST_LINES = 40
"""The number of lines of each log that a failed test shows."""


class Deployment:
    """What an operator has: servers, settings, and processes that come and go.

    `programs` says in which of the two ways workers are started, and `survived` which of `UNEXPECTED` are expected.
    """

    programs = "workers"
    survived: frozenset[str] = frozenset()

    def __init__(self, database_url: str, broker: PlainClient, logs: Path) -> None:
        self.broker = broker
        self.engine: Engine = create_engine(database_url, pool_pre_ping=True)
        self.environment = {
            "PYTHONPATH": str(ROOT),
            "OUTBOXKIT_DATABASE_URL": database_url,
            "OUTBOXKIT_BROKER_URL": broker.url,
            "OUTBOXKIT_EXCHANGE": broker.exchange,
            "OUTBOXKIT_QUEUE": broker.queue,
            "OUTBOXKIT_RETRY_DELAYS": DELAYS_TEXT,
            "OUTBOXKIT_LOG_LEVEL": "debug",
        }
        self.processes: list[WorkerProcess] = []
        self._logs, self._numbers = logs, count()
        Tables.metadata.create_all(self.engine)

    def relay(self, **settings: str) -> WorkerProcess:
        """Start a relay."""
        return self.start("relay", **settings)

    def consumer(self, **settings: str) -> WorkerProcess:
        """Start a consumer, and wait until it is connected."""
        started = self.start("consumer", HANDLERS, **settings)
        started.wait_for("consumer connected")
        return started

    def start(self, name: str, *arguments: str, **settings: str) -> WorkerProcess:
        """Start a worker by its name."""
        log = self._logs / f"{next(self._numbers)}-{name}.log"
        command = [*PROGRAMS[self.programs][name], *arguments]
        self.processes.append(WorkerProcess(command, self.environment | settings, log))
        return self.processes[-1]

    def start_often_pruning(self, **settings: str) -> WorkerProcess:
        """Start a copy of workers/retention.py with an interval of its own, as somebody would edit it."""
        copied, root = self._logs / "retention.py", (ROOT / "workers" / "retention.py").read_text()
        copied.write_text(root.replace("timedelta(hours=1)", "timedelta(milliseconds=200)"))
        log = self._logs / f"{next(self._numbers)}-retention.log"
        self.processes.append(WorkerProcess([sys.executable, str(copied)], self.environment | settings, log))
        return self.processes[-1]

    def outboxkit(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run one `outboxkit` command to its end."""
        return run_to_end([COMMAND, *arguments], self.environment | settings)

    def declare_queue(self) -> None:
        """Have the consumer's own queue and bindings without a consumer."""
        drained = self.outboxkit("consume", HANDLERS, "--drain")
        assert drained.returncode == 0, drained.stderr

    def effects(self) -> Counter[int]:
        """How many effects each order had."""
        with Session(self.engine) as session:
            return Counter(session.scalars(select(Effect.order_id)))

    def message_ids(self) -> list[str]:
        """The ids of the messages that had an effect."""
        with Session(self.engine) as session:
            return list(session.scalars(select(Effect.message_id)))

    def wait_for_effects(self, count: int) -> Counter[int]:
        """The effects, once there are so many."""
        return eventually(self.effects, lambda found: found.total() >= count)

    def pending(self) -> int:
        """Rows in the outbox."""
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(tables.outbox)).scalar_one()

    def wait_for_empty_outbox(self) -> None:
        """Return once the relay has deleted everything."""
        eventually(self.outbox_rows, lambda rows: not rows)

    def outbox_rows(self) -> list[Any]:
        """What is in the outbox."""
        with self.engine.connect() as connection:
            return list(connection.execute(select(tables.outbox).order_by(tables.outbox.c.position)))

    def dead_letters(self) -> list[Any]:
        """What was given up on."""
        with self.engine.connect() as connection:
            return list(connection.execute(select(tables.dead_letter).order_by(tables.dead_letter.c.id)))

    @contextmanager
    def lock_held(self, number: int) -> Iterator[Connection]:
        """Hold an advisory lock, in the session of this connection."""
        with self.engine.connect() as connection:
            connection.execute(select(func.pg_advisory_lock(number)))
            connection.commit()
            yield connection
            connection.execute(select(func.pg_advisory_unlock(number)))
            connection.commit()

    def waiting_on(self, kind: str, *, of: str = "outboxkit %") -> int:
        """How many of these connections wait for a lock of this kind, such as `advisory` or `transactionid`."""
        asked = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE :of AND wait_event_type = 'Lock' AND wait_event = :kind"
        )
        with self.engine.connect() as connection:
            return int(connection.execute(asked, {"kind": kind, "of": of}).scalar_one())

    @contextmanager
    def broker_behind_proxy(self) -> Iterator[tuple[TcpProxy, str]]:
        """A proxy before the broker, and the broker's URL through it."""
        with _behind_proxy(self.broker.url, 5672) as proxied:
            yield proxied

    @contextmanager
    def database_behind_proxy(self) -> Iterator[tuple[TcpProxy, str]]:
        """A proxy before the database, and the database's URL through it."""
        with _behind_proxy(self.environment["OUTBOXKIT_DATABASE_URL"], 5432) as proxied:
            yield proxied

    def close(self) -> None:
        """Kill what still runs; AssertionError if one of them logged an error of its own code."""
        for process in self.processes:
            process.kill()
        self.engine.dispose()
        for process in self.processes:
            log = process.log.read_text(errors="replace")
            print(process.log.name, *log.splitlines()[-LAST_LINES:], sep="\n")  # pytest shows it if the test failed
            assert not [event for event in UNEXPECTED if event in log and event not in self.survived], log


@contextmanager
def _behind_proxy(url: str, port: int) -> Iterator[tuple[TcpProxy, str]]:
    target = make_url(url)
    proxy = TcpProxy(target.host or "localhost", target.port or port)
    try:
        yield proxy, target.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    finally:
        proxy.close()
