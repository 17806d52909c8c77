"""Faults by name: each breaks something for some seconds, and mends it. A plan of them is drawn from a seed."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import psycopg
from sqlalchemy import make_url

from tests.acceptance.worker_process import WorkerProcess
from tests.faults.replicated import Replicated
from tests.faults.set_clock import SetClock
from tests.faults.small_disk import SmallDisk
from tests.servers import OwnServer, Server
from tests.servers.cluster import Cluster
from tests.support.tcp_proxy import TcpProxy

MOST_SECONDS_APART = 10 * 86_400
"""Of a clock that is set; a message has the time of the process that adds it, and may not be older than the window."""


class World(Protocol):
    """What can be broken."""

    database: Server
    broker: OwnServer
    cluster: Cluster | None
    proxies: list[TcpProxy]
    clocks: list[SetClock]
    conninfo: str

    def pick(self, numbers: random.Random) -> WorkerProcess:
        """A worker that runs."""

    def restart(self, worker: WorkerProcess) -> None:
        """Start the like of a worker that has ended."""

    def change_shards(self, numbers: random.Random) -> None:
        """Stop all processes of the sharded queue, and start them with another number of shards."""

    def queues(self) -> list[str]:
        """The queues of the consumers."""


Fault = Callable[[World, random.Random], AbstractContextManager[None]]
"""Breaks something on entering, and mends it on leaving."""


@contextmanager
def worker_killed(world: World, numbers: random.Random) -> Iterator[None]:
    worker = world.pick(numbers)
    worker.kill()
    yield
    world.restart(worker)


@contextmanager
def worker_frozen(world: World, numbers: random.Random) -> Iterator[None]:
    with world.pick(numbers).frozen():
        yield


def ends_well(worker: WorkerProcess) -> bool:
    """Whether it ends with the code of a stop; uvicorn ends by the signal that it has handled."""
    return worker.wait() == (-signal.SIGTERM if worker.log.name == "web.log" else 0)


@contextmanager
def worker_stopped(world: World, numbers: random.Random) -> Iterator[None]:
    worker = world.pick(numbers)
    worker.terminate()
    yield
    assert ends_well(worker), f"not a clean end: {worker.log}"
    world.restart(worker)


@contextmanager
def clock_set(world: World, numbers: random.Random) -> Iterator[None]:
    """The clock of one machine is set by up to days, forward or back, and then right again."""
    clock = numbers.choice(world.clocks)
    clock.set(numbers.choice((-1, 1)) * numbers.randrange(1, numbers.choice((60, 3_600, MOST_SECONDS_APART))))
    yield
    clock.set(0)


@contextmanager
def shards_changed(world: World, numbers: random.Random) -> Iterator[None]:
    """No fault, but what an operator does. The move begins meanwhile, and any other fault may come during it."""
    world.change_shards(numbers)
    yield


def _proxy(world: World, numbers: random.Random) -> TcpProxy:
    return numbers.choice(world.proxies)


@contextmanager
def network_cut(world: World, numbers: random.Random) -> Iterator[None]:
    _proxy(world, numbers).cut()
    yield


@contextmanager
def network_refused(world: World, numbers: random.Random) -> Iterator[None]:
    proxy = _proxy(world, numbers)
    proxy.refuse()
    yield
    proxy.accept()


@contextmanager
def network_held(world: World, numbers: random.Random) -> Iterator[None]:
    """One direction, or both, is held back, and arrives late."""
    proxy = _proxy(world, numbers)
    numbers.choice((proxy.hold_client, proxy.hold_server, proxy.swallow))()
    yield
    proxy.release()


@contextmanager
def network_held_and_cut(world: World, numbers: random.Random) -> Iterator[None]:
    """What a direction held back never arrives: the peer has done it, or has not, and nobody knows."""
    proxy = _proxy(world, numbers)
    numbers.choice((proxy.hold_client, proxy.hold_server))()
    yield
    proxy.cut()
    proxy.release()


@contextmanager
def network_reset(world: World, numbers: random.Random) -> Iterator[None]:
    """The connection that sends the n-th byte from now ends in the middle of it."""
    proxy = _proxy(world, numbers)
    proxy.reset_after(numbers.randrange(1, 20_000))
    yield
    proxy.reset_after(None)


@contextmanager
def network_silent(world: World, numbers: random.Random) -> Iterator[None]:
    """Open connections lose all that is sent, and acknowledge it; new ones work."""
    proxy = _proxy(world, numbers)
    proxy.silence()
    yield
    proxy.cut()  # first: no network delivers what comes behind a gap
    proxy.unsilence()


@contextmanager
def network_throttled(world: World, numbers: random.Random) -> Iterator[None]:
    """All that is sent arrives, slowly."""
    proxy = _proxy(world, numbers)
    proxy.throttle(numbers.choice((20_000, 100_000)))
    yield
    proxy.throttle(None)


@contextmanager
def database_killed(world: World, numbers: random.Random) -> Iterator[None]:
    numbers.choice((world.database.kill, world.database.stop))()
    yield
    world.database.start()


@contextmanager
def database_read_only(world: World, numbers: random.Random) -> Iterator[None]:
    """It refuses to write, as a standby does, or a server whose operator has found its disk full."""
    with psycopg.connect(world.conninfo, autocommit=True) as person:
        person.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        person.execute("SELECT pg_reload_conf()")
        yield
        person.execute("ALTER SYSTEM RESET default_transaction_read_only")
        person.execute("SELECT pg_reload_conf()")


@contextmanager
def database_disk_full(world: World, numbers: random.Random) -> Iterator[None]:
    """It has no byte left, for rows or for its log. Where it has given up, an operator starts it again."""
    assert isinstance(world.database, SmallDisk), "it needs --small-disk"
    world.database.fill()
    yield
    world.database.free()


@contextmanager
def primary_lost(world: World, numbers: random.Random) -> Iterator[None]:
    """It never comes back, and its synchronous standby is promoted."""
    assert isinstance(world.database, Replicated), "it needs --standby"
    world.database.fail_over(fenced=True)
    yield


@contextmanager
def primary_not_fenced(world: World, numbers: random.Random) -> Iterator[None]:
    """Its standby is promoted, and it goes on with the sessions that it has; later it is lost, too."""
    assert isinstance(world.database, Replicated), "it needs --standby"
    old = world.database.fail_over(fenced=False)
    yield
    old.close()


@contextmanager
def broker_killed(world: World, numbers: random.Random) -> Iterator[None]:
    """Of a cluster one node."""
    broker = numbers.choice(world.cluster.nodes) if world.cluster else world.broker
    numbers.choice((broker.kill, broker.stop))()
    yield
    broker.start()


@contextmanager
def node_frozen(world: World, numbers: random.Random) -> Iterator[None]:
    """A node of the cluster takes connections, and answers nothing."""
    assert world.cluster is not None, "it needs --nodes"
    node = numbers.choice(world.cluster.nodes)
    node.pause()
    yield
    node.resume()


@contextmanager
def node_parted(world: World, numbers: random.Random) -> Iterator[None]:
    """A node and the others do not reach each other, and its clients reach it. An operator restarts it afterwards."""
    assert world.cluster is not None, "it needs --nodes"
    node = numbers.choice(world.cluster.nodes)
    others = [other.name for other in world.cluster.nodes if other is not node]
    parted = " ".join(f"erlang:set_cookie('{name}', parted), erlang:disconnect_node('{name}')," for name in others)
    node.execute("rabbitmqctl", "eval", f"{parted} ok.")
    yield
    node.kill()
    node.start()


@contextmanager
def majority_lost(world: World, numbers: random.Random) -> Iterator[None]:
    """One node of three is left, which confirms nothing."""
    assert world.cluster is not None, "it needs --nodes"
    killed = numbers.sample(range(len(world.cluster.nodes)), 2)
    for member in killed:
        world.cluster.kill(member)
    yield
    world.cluster.start(*killed)


@contextmanager
def broker_out_of_memory(world: World, numbers: random.Random) -> Iterator[None]:
    world.broker.execute("rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
    yield
    world.broker.execute("rabbitmqctl", "set_vm_memory_high_watermark", "0.4")


@contextmanager
def broker_out_of_disk(world: World, numbers: random.Random) -> Iterator[None]:
    """Its alarm: it takes no message from any publisher."""
    world.broker.execute("rabbitmqctl", "set_disk_free_limit", "1000000GB")
    yield
    world.broker.execute("rabbitmqctl", "set_disk_free_limit", "50MB")


@contextmanager
def broker_password_changed(world: World, numbers: random.Random) -> Iterator[None]:
    """The password of all is another one, and their connections end; then it is the old one again."""
    user, password = (make_url(world.broker.url).username or ""), str(make_url(world.broker.url).password)
    world.broker.execute("rabbitmqctl", "change_password", user, "another one")
    world.broker.execute("rabbitmqctl", "close_all_user_connections", user, "a new password")
    yield
    world.broker.execute("rabbitmqctl", "change_password", user, password)


@contextmanager
def leaders_moved(world: World, numbers: random.Random) -> Iterator[None]:
    """The leaders of quorum queues go to other nodes, as an operator asks for after a node was away."""
    assert world.cluster is not None, "it needs --nodes"
    world.broker.execute("rabbitmq-queues", "rebalance", "quorum")
    yield


@contextmanager
def queue_full(world: World, numbers: random.Random) -> Iterator[None]:
    """A queue refuses what is published to it."""
    arguments = ("--apply-to", "queues", f"^{numbers.choice(world.queues())}$")
    world.broker.execute(
        "rabbitmqctl", "set_policy", *arguments[:2], "soak", arguments[2],
        '{"max-length": 1, "overflow": "reject-publish"}',
    )  # fmt: skip
    yield
    world.broker.execute("rabbitmqctl", "clear_policy", "soak")


@contextmanager
def sessions_ended(world: World, numbers: random.Random) -> Iterator[None]:
    with psycopg.connect(world.conninfo, autocommit=True) as person:
        person.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < %s",
            [numbers.choice((0.3, 1))],
        )
    yield


@contextmanager
def tables_locked(world: World, numbers: random.Random) -> Iterator[None]:
    """Someone holds tables that everybody needs; two of them in the order that makes a deadlock with a handler."""
    wanted = numbers.choice((["outboxkit_outbox"], ["outboxkit_inbox"], ["soak_effect", "outboxkit_inbox"]))
    with psycopg.connect(world.conninfo) as person, suppress(psycopg.errors.DeadlockDetected):
        for table in wanted:
            person.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        return
    yield


@contextmanager
def connections_used_up(world: World, numbers: random.Random) -> Iterator[None]:
    with ExitStack() as opened:
        with suppress(psycopg.OperationalError):
            for _ in range(300):
                opened.callback(psycopg.connect(world.conninfo).close)
        yield


def _named(*faults: Fault) -> dict[str, Fault]:
    return {fault.__name__.replace("_", " "): fault for fault in faults}  # type: ignore[attr-defined]


SHORT = _named(
    *(worker_killed, worker_frozen, worker_stopped, network_cut, network_refused, network_held),
    *(network_held_and_cut, network_reset, sessions_ended, tables_locked),
)
"""Those that need little time, also to mend."""
ALL = SHORT | _named(
    *(database_killed, broker_killed, network_silent, broker_out_of_memory, queue_full, connections_used_up),
    *(shards_changed, network_throttled, database_read_only, broker_out_of_disk, broker_password_changed),
)
CLUSTERED = _named(node_frozen, node_parted, majority_lost, leaders_moved)
"""Further ones, with three nodes of RabbitMQ."""
REPLICATED = _named(primary_lost, primary_not_fenced)
"""Further ones, with a standby of PostgreSQL."""
SMALL = _named(database_disk_full)
"""A further one, with a PostgreSQL on a small disk."""
CLOCKS = _named(clock_set)
"""A further one, with workers whose clocks can be set."""


@dataclass(frozen=True)
class Broken:
    """One entry of a plan: these faults at once, for so long, after a quiet time."""

    quiet: float
    names: tuple[str, ...]
    seconds: float
    seed: float

    def happen(self, world: World) -> tuple[float, float]:
        """Break, wait, mend; when it began and ended."""
        time.sleep(self.quiet)
        numbers, began = random.Random(self.seed), time.time()
        with ExitStack() as broken:
            for name in self.names:
                broken.enter_context((ALL | CLUSTERED | REPLICATED | SMALL | CLOCKS)[name](world, numbers))
            time.sleep(self.seconds)
        return began, time.time()


def plan(numbers: random.Random, names: list[str], *, longest: float) -> Iterator[Broken]:
    """Faults without end: one at a time, or two at once; each name before any comes again."""
    while True:
        for first in numbers.sample(names, len(names)):
            kinds = {"worker", "network"} - ({"worker"} if first == "shards changed" else {first.partition(" ")[0]})
            beside = [name for name in names if name.partition(" ")[0] in kinds]
            second = [numbers.choice(beside)] if beside and numbers.random() < 0.25 else []
            yield Broken(numbers.uniform(1, 3), (first, *second), numbers.uniform(0.2, longest), numbers.random())
