"""The soak: producers, relays, consumers of each kind, clients and an operator, under faults; then the history."""

import json
import operator
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import psycopg
from sqlalchemy import create_engine, func, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outboxkit import tables
from tests.acceptance.deployment import UNEXPECTED, Deployment
from tests.acceptance.worker_process import WorkerProcess
from tests.faults import shop
from tests.faults.faults import ALL, CLOCKS, CLUSTERED, REPLICATED, SMALL, ends_well, plan
from tests.faults.history import Committed, Dead, Fault, Handled, History, Published, Rules, Verdict, judge
from tests.faults.set_clock import SetClock
from tests.processes import COMMAND
from tests.servers import OwnServer, Server, create_database, drop_database, provide_pooler
from tests.servers.cluster import Cluster
from tests.servers.ports import free_row
from tests.support.databases import migrate
from tests.support.pages import libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually
from tests.support.tcp_proxy import TcpProxy

RELAYS, PRODUCERS, CLIENTS, KEYS = 3, 3, 2, 5
BETWEEN_SECONDS = (0.05, 0.35)
"""Between two transactions of a producer: some 15 steps a second in all, each with five handlers and an echo."""
STUCK_SECONDS = 60
"""Without progress for so long, the end has come."""
COUNTED_EVERY_SECONDS = 1
"""What is missing is counted over all effects, which the workers would notice."""
PATIENCE_SECONDS = 45
"""After a fault: a silent peer is noticed within half a minute, and a reconnection waits a few seconds."""
MOST_MEMORY = 200 << 20
MOST_SHARDS = 4
REFUSED = 2
"""The exit code of a process that cannot begin, which a service manager starts again."""
POOLED = 80
"""Server sessions of a pooler, which are more than all workers use at a time."""
SETTINGS = {
    "OUTBOXKIT_RETRY_DELAYS": "150ms,300ms",
    "OUTBOXKIT_MAX_ATTEMPTS": "3",
    "OUTBOXKIT_PUBLISH_TIMEOUT": "3s",
    "OUTBOXKIT_LOG_LEVEL": "info",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a soak is asked for; as a text the command that asks for it.

    Attributes:
        seconds: for which faults happen. The drain comes after them.
        names: of the faults that are drawn; empty for all that these servers and workers know.
        longest: seconds of a fault, at most.
        pooler: PgBouncer is before the workers.
        standby: the database has a synchronous standby.
        small_disk: the database's disk can be filled.
        clocks: the workers' clocks can be set.
        notes: messages that each transaction of a producer adds beside its step.
        chosen: the numbers of faults of the plan, which alone happen; None for all of these seconds.
    """

    seed: int
    seconds: float
    names: tuple[str, ...] = ()
    longest: float = 6
    nodes: int = 1
    pooler: bool = False
    standby: bool = False
    small_disk: bool = False
    clocks: bool = False
    notes: int = 0
    chosen: tuple[int, ...] | None = None

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the faults of these servers and workers."""
        more = (
            *((CLUSTERED, self.nodes > 1), (REPLICATED, self.standby)),
            *((SMALL, self.small_disk), (CLOCKS, self.clocks)),
        )
        return (*ALL, *(name for faults, is_here in more if is_here for name in faults))

    def __str__(self) -> str:
        options = [f"--nodes {self.nodes}"] if self.nodes > 1 else []
        options += ["--pooler"] * self.pooler + ["--standby"] * self.standby + ["--small-disk"] * self.small_disk
        options += ["--clocks"] * self.clocks
        options += [f"--longest {self.longest:g}"] if self.longest != type(self).longest else []
        options += [f"--notes {self.notes}"] if self.notes else []
        if self.names:
            options.append(f"--only '{','.join(self.names)}'")
        if self.chosen is not None:
            options.append(f"--faults {','.join(map(str, self.chosen))}")
        return f"make soak MINUTES={self.seconds / 60:g} SEED={self.seed}" + (
            f' ARGS="{" ".join(options)}"' if options else ""
        )


@dataclass
class Report:
    """What a soak did and found. `happened` has the numbers of its faults."""

    run: Run
    seconds: float
    history: History
    happened: tuple[int, ...]
    faults: Counter[str]
    copies: int
    sessions: int
    memory: int
    verdicts: list[Verdict]

    def __str__(self) -> str:
        names = ", ".join(f"{name} {times}" for name, times in sorted(self.faults.items()))
        made, dead = self.history.committed, self.history.dead
        lines = [
            f"seed {self.run.seed}, {self.seconds:.0f} s: {len(made)} messages committed,",
            f"  {self.copies} copies published, {len(self.history.handled)} effects, {len(dead)} dead letters;",
            f"  at most {self.sessions} sessions and {self.memory >> 20} MiB a process",
            f"{self.faults.total()} faults: {names}",
            f"{len(self.verdicts)} broken promises",
        ]
        for name, times in Counter(verdict.name for verdict in self.verdicts).items():
            examples = [verdict.text for verdict in self.verdicts if verdict.name == name]
            lines.append("\n  ".join((f"{name}, {times} times, such as", *examples[:5])))
        if self.verdicts:
            lines.append(f"again: {self.run}")
        return "\n".join(lines)

    def keep(self, logs: Path) -> None:
        """Write the history of a broken promise beside the logs: another run with this seed has another one."""
        if self.verdicts:
            (logs / "history.json").write_text(json.dumps(asdict(self.history), indent=1))


@dataclass
class Soak:
    """The world of one run: servers, processes that come and go, and proxies.

    Each relay has proxies of its own, to the database and to each node, and all other processes share such ones. So
    it is with clocks.

    Attributes:
        cluster: the nodes, of which `broker` is the first.
        pooler_url: of the database, for the workers.
    """

    database: Server
    broker: OwnServer
    url: str
    logs: Path
    run: Run
    cluster: Cluster | None = None
    pooler_url: str | None = None
    faulted: list[Fault] = field(default_factory=list)
    blamed: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    sessions: int = 0
    memory: int = 0
    shards: int = 2

    def __post_init__(self) -> None:
        self.conninfo = libpq(self.url)
        self.proxies, self.clocks = list[TcpProxy](), list[SetClock]()
        nodes = self.cluster.urls if self.cluster else [self.broker.url]
        self.ways = [
            {
                "OUTBOXKIT_DATABASE_URL": self.through(self.pooler_url or self.url),
                "OUTBOXKIT_BROKER_URL": ",".join(map(self.through, nodes)),
            }
            for _ in range(RELAYS + 1)
        ]
        if self.run.clocks:
            self.clocks += [SetClock(self.logs / f"clock {number}") for number in range(len(self.ways))]
            self.ways = [way | clock.environment for way, clock in zip(self.ways, self.clocks, strict=True)]
        self.client = PlainClient(self.broker.url)
        self.deployment = Deployment(self.url, self.client, self.logs)
        self.deployment.programs = "outboxkit"
        self.mended = self.logs / "mended"
        self.deployment.environment |= SETTINGS | self.ways[RELAYS] | {"SOAK_MENDED": str(self.mended)}
        shop.Tables.metadata.create_all(self.deployment.engine)
        self.tap = self.client.bind("#", queue=f"{self.client.queue}.tap")
        self.port, self.end, self.numbers = free_row(1), threading.Event(), count()
        self.workers: dict[WorkerProcess, Callable[[], WorkerProcess]] = {}

    def through(self, url: str) -> str:
        """The URL of a new proxy in front of this server."""
        target = make_url(url)
        self.proxies.append(TcpProxy(target.host or "localhost", target.port or 0))
        return target.set(host="127.0.0.1", port=self.proxies[-1].port).render_as_string(hide_password=False)

    def queue(self, name: str) -> str:
        return self.client.own(f"{self.client.queue}.{name}")

    def queues(self) -> list[str]:
        return [self.queue(name) for name in (*shop.CONSUMERS, "failing")]

    def relay(self, number: int) -> WorkerProcess:
        return self.deployment.relay(**self.ways[number])

    def consumer(self, name: str) -> WorkerProcess:
        options = {"ordered": ("--ordered",), "sharded": ("--ordered", "--shards", str(self.shards))}
        return self.deployment.start(
            "consumer",
            "tests.faults.shop",
            *options.get(name, ()),
            OUTBOXKIT_QUEUE=self.queue(name),
            SOAK_CONSUMER=name,
        )

    def web(self) -> WorkerProcess:
        uvicorn = str(Path(COMMAND).with_name("uvicorn"))
        command = [uvicorn, "tests.faults.shop:web", "--factory", "--port", str(self.port), "--log-level", "error"]
        return WorkerProcess(
            command, self.deployment.environment | {"OUTBOXKIT_DATABASE_URL": self.url}, self.logs / "web.log"
        )

    def start(self) -> None:
        """All processes; consumers have their queues before anything is sent."""
        names = [*shop.CONSUMERS, "sharded", "failing"]
        consumers = [self._run(partial(self.consumer, name)) for name in names]
        for number in range(RELAYS):
            self._run(partial(self.relay, number))
        self._run(self.web)
        for consumer in consumers:
            consumer.wait_for("consumer connected")

    def _run(self, start: Callable[[], WorkerProcess]) -> WorkerProcess:
        worker = start()
        self.workers[worker] = start
        return worker

    def pick(self, numbers: random.Random) -> WorkerProcess:
        return numbers.choice(list(self.workers))

    def restart(self, worker: WorkerProcess) -> None:
        self._run(self.workers.pop(worker))

    def revive(self) -> None:
        """Start again who was refused at its start, as by a password that was another one, and ended with 2."""
        for worker in list(self.workers):
            if not worker.is_running and worker.wait() == REFUSED:
                self.restart(worker)

    def change_shards(self, numbers: random.Random) -> None:
        """Stop all processes of the sharded queue, and start them with another number of shards."""
        self.shards = numbers.choice([each for each in range(1, MOST_SHARDS + 1) if each != self.shards])
        sharded = ("sharded",)
        stopped = [worker for worker, start in self.workers.items() if getattr(start, "args", ()) == sharded]
        for worker in stopped:
            worker.terminate()
        for worker in stopped:
            assert ends_well(worker), f"not a clean end: {worker.log}"
            self.restart(worker)

    def produce(self, number: int) -> None:
        """Steps of a few keys in turn; a tenth is rolled back, some commit late."""
        numbers = random.Random(f"{self.run.seed} producer {number}")
        engine = create_engine(self.url, pool_pre_ping=True)
        for step in count():
            if self.end.wait(numbers.uniform(*BETWEEN_SECONDS)):
                break
            key, subject = f"{number}-{step % KEYS}", f"{number}-{step}"
            fate, late, poison = numbers.random(), numbers.random() < 0.02, numbers.random() < 0.01
            with suppress(DBAPIError), Session(engine) as session:
                if poison:
                    shop.add(session, shop.PoisonAdded(f"poison {subject}"))
                shop.add(session, shop.StepTaken(subject), key=key, step=step)
                for note in range(self.run.notes):
                    shop.add(session, shop.NoteTaken(f"note {subject}-{note}"))
                session.flush()
                if late:
                    self.end.wait(numbers.uniform(0.5, 2))
                if fate < 0.1:
                    session.rollback()
                else:
                    session.commit()
                    self.acked.add(subject)
        engine.dispose()

    def ask(self, number: int) -> None:
        """A client that repeats each request under its key until it has an answer."""
        numbers = random.Random(f"{self.run.seed} client {number}")
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=2, trust_env=False) as client:
            for step in count():
                subject, status = f"client {number}-{step}", 0
                while status != 201 and not self.end.wait(numbers.uniform(0.1, 0.4)):
                    with suppress(httpx.TransportError):
                        answer = client.post(
                            "/steps",
                            params={"subject": subject},
                            headers={"Idempotency-Key": subject.replace(" ", "-")},
                        )
                        status = answer.status_code
                if status == 201:
                    self.acked.add(subject)
                if self.end.is_set():
                    break

    def operate(self) -> None:
        """Replay, discard, pause and resume; and note whom an outage has blamed."""
        numbers = random.Random(f"{self.run.seed} operator")
        while not self.end.wait(numbers.uniform(1.5, 4)):
            self.measure()
            choice = numbers.choice(("replay", "discard", "pause"))
            if choice == "pause":
                what, began = numbers.choice(("relay", *self.queues())), time.time()
                if self.deployment.outboxkit("pause", what, "--for", "2s", "--why", "soak").returncode == 0:
                    self.faulted.append(Fault(f"{what} paused", began, began + 4))
            elif choice == "discard":
                if numbers.random() < 0.3:
                    self.deployment.outboxkit("dead", "discard", "--all", "--yes")
            else:
                self.deployment.outboxkit("dead", "replay", "--all", "--yes")

    def measure(self) -> None:
        with suppress(DBAPIError), self.deployment.engine.connect() as connection:
            outbox = tables.outbox.c
            self.blamed.update(connection.scalars(select(outbox.message_id).where(outbox.attempts > 0)))
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outboxkit%'"
            self.sessions = max(self.sessions, connection.execute(text(sessions)).scalar_one())
        for worker in list(self.workers):
            with suppress(OSError, ValueError):
                self.memory = max(self.memory, worker.most_memory)

    def break_things(self) -> Iterator[int]:
        """Faults until the time is over, or all that were chosen: the number of each in the plan, once it has ended."""
        run, ends = self.run, time.monotonic() + self.run.seconds
        drawn = plan(random.Random(f"{run.seed} faults"), list(run.names or run.known), longest=run.longest)
        for number, broken in enumerate(drawn, 1):
            is_over = time.monotonic() > ends if run.chosen is None else number > max(run.chosen, default=0)
            if is_over or self.end.is_set():
                return
            if run.chosen is not None and number not in run.chosen:
                continue
            began, ended = broken.happen(self)
            print(f"{number}. {ended:.1f} {' + '.join(broken.names)}: {ended - began:.1f} s", flush=True)
            self.faulted.append(Fault(" + ".join(broken.names), began, ended))
            self.revive()
            yield number

    def history(self) -> History:
        """What is known once all processes have ended."""
        history = History(faults=list(self.faulted))
        handlers = {
            "StepTaken": tuple(sum(shop.CONSUMERS.values(), ())), "PoisonAdded": (shop.FAILING,),
            "NoteTaken": (shop.NOTING,),
        }  # fmt: skip
        with Session(self.deployment.engine) as session:
            for row in session.scalars(select(shop.Made)):
                history.committed.append(
                    Committed(
                        row.message_id, row.subject, row.at, row.key, row.step, handlers.get(row.type, ()),
                        shop.ORDERED, fails=row.type == "PoisonAdded",
                    )
                )  # fmt: skip
            inbox = tables.inbox.c
            attempts = {
                (row.message_id, row.handler): row.attempts
                for row in session.execute(select(inbox.message_id, inbox.handler, inbox.attempts))
            }
            for effect in session.scalars(select(shop.Effect)):
                key = (effect.message_id, effect.handler)
                history.handled.append(Handled(*key, effect.at, attempts.get(key, 0)))
            for letter in session.execute(select(tables.dead_letter)):
                history.dead.append(
                    Dead(
                        letter.message_id, letter.handler or letter.side, f"{letter.reason} {letter.error}",
                        letter.dead_at.timestamp(), letter.resolution,
                    )
                )  # fmt: skip
            history.left = list(session.scalars(select(tables.outbox.c.message_id)))
        history.held = self._held()
        return history

    def missing(self) -> dict[str, int]:
        """What is not done yet: effects of messages that were not given up, rows of the outbox, open dead letters."""
        letters = tables.dead_letter.c
        with Session(self.deployment.engine) as session:
            made = dict(session.execute(select(shop.Made.type, func.count()).group_by(shop.Made.type)).all())
            pairs = select(shop.Effect.message_id, shop.Effect.handler).distinct()
            effects = session.scalar(select(func.count()).select_from(pairs.subquery()))
            given_up = session.scalar(select(func.count()).where(letters.resolution == "discarded"))
            left = session.scalar(select(func.count()).select_from(tables.outbox))
            open_ = session.scalar(select(func.count()).where(letters.resolution.is_(None)))
        each = sum(map(len, shop.CONSUMERS.values()))
        wanted = made.get("StepTaken", 0) * each + made.get("PoisonAdded", 0) + made.get("NoteTaken", 0)
        found = {"effects": wanted - given_up - effects, "outbox": left, "dead letters": open_}
        return {name: number for name, number in found.items() if number > 0}

    def drain(self) -> list[Verdict]:
        """All is mended, and all is done; who is not is seen in the history."""
        self.mended.touch()
        missing = self.missing()
        while missing:
            if "dead letters" in missing:
                self.deployment.outboxkit("dead", "replay", "--all", "--yes")
            time.sleep(COUNTED_EVERY_SECONDS)
            with suppress(AssertionError):
                eventually(self.missing, partial(operator.ne, missing), seconds=STUCK_SECONDS)
            before, missing = missing, self.missing()
            if missing == before:
                break
        self.client.disconnect()
        with suppress(AssertionError):
            eventually(lambda: not any(map(self.client.depth, self.queues())), seconds=10)
        self.measure()
        for worker in self.workers:
            worker.terminate()
        verdicts = [Verdict("unclean end", worker.log.name) for worker in self.workers if not ends_well(worker)]
        if missing:
            verdicts.append(Verdict("not drained", f"{missing} for {STUCK_SECONDS} s"))
        if self.memory > MOST_MEMORY:
            verdicts.append(Verdict("memory", f"a process had {self.memory >> 20} MiB"))
        for log in sorted(self.logs.glob("*.log")):
            verdicts += [Verdict("unexpected", f"{log.name}: {line}") for line in UNEXPECTED if line in log.read_text()]
        return verdicts

    def _held(self) -> list[str]:
        """The sessions of workers, which have all ended; a pooler keeps its own."""
        ask = "SELECT application_name, state FROM pg_stat_activity WHERE application_name LIKE 'outboxkit%'"
        if self.pooler_url is not None:
            return []
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            with suppress(AssertionError):
                eventually(lambda: not connection.execute(ask).fetchall(), seconds=10)
            return [f"the session {name!r} is still {state}" for name, state in connection.execute(ask)]

    def close(self) -> None:
        self.end.set()
        for process in (*self.deployment.processes, *self.workers):
            process.kill()
        self.deployment.engine.dispose()
        for proxy in self.proxies:
            proxy.close()
        self.client.clean_up(SETTINGS["OUTBOXKIT_RETRY_DELAYS"].split(","))


@contextmanager
def _world(database: Server, broker: OwnServer, cluster: Cluster | None, logs: Path, run: Run) -> Iterator[Soak]:
    name = f"outboxkit_soak_{run.seed}_{time.time_ns()}"
    url = create_database(database.url, name)
    migrate(url)
    with ExitStack() as opened:
        opened.callback(drop_database, database.url, name)
        pooler = provide_pooler(url, size=POOLED) if run.pooler else None
        if pooler is not None:
            opened.callback(pooler.close)
            pooler.start()
        world = Soak(database, broker, url, logs, run, cluster, pooler.url if pooler else None)
        opened.callback(world.close)
        yield world


def soak(database: Server, broker: OwnServer | Cluster, logs: Path, run: Run) -> Report:
    """Run under faults, drain, and judge."""
    cluster, broker = (broker, broker.nodes[0]) if isinstance(broker, Cluster) else (None, broker)
    began = time.time()
    with _world(database, broker, cluster, logs, run) as world:
        world.start()
        with ThreadPoolExecutor(PRODUCERS + CLIENTS + 1) as pool:
            running: list[Future[None]] = [pool.submit(world.produce, number) for number in range(PRODUCERS)]
            running += [pool.submit(world.ask, number) for number in range(CLIENTS)]
            running.append(pool.submit(world.operate))
            try:
                happened = tuple(world.break_things())
            finally:
                world.end.set()
            for one in running:
                one.result()
        verdicts = world.drain()
        history = world.history()
        for received in world.client.take_all(world.tap):
            subject = json.loads(received.body)["subject"]
            history.published.append(Published(received.properties.message_id, subject))
        made = {each.subject for each in history.committed}
        verdicts += [Verdict("lost", f"{each}: its answer came, and its row is gone") for each in world.acked - made]
        verdicts += [Verdict("attempt burnt", f"{id_} in the outbox") for id_ in world.blamed]
        verdicts += judge(history, Rules(patience=PATIENCE_SECONDS))
        faults = Counter(name for fault in history.faults for name in fault.name.split(" + "))
        report = Report(
            run, time.time() - began, history, happened, faults,
            len(history.published), world.sessions, world.memory, verdicts,
        )  # fmt: skip
        report.keep(logs)
        return report
