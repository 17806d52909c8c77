"""A private cluster of three RabbitMQ nodes, for what one node cannot show: the loss of a node, and of the majority."""

from tests.servers import rabbitmq
from tests.servers.certificates import Certificates
from tests.servers.ports import free_ports
from tests.servers.provision import RABBITMQ, this_machine
from tests.servers.rabbitmq import Formation, PrivateRabbitmq
from tests.servers.server import ServersUnavailable

NODES = 3


class Cluster:
    """Three nodes on this machine that know each other, with ports, a name server and a cookie of their own.

    Attributes:
        nodes: each with its `url`.
    """

    def __init__(self, programs: rabbitmq.Programs, *, managed: bool = False) -> None:
        *ports, epmd_port = free_ports(NODES + 1)
        formation = Formation(tuple(ports), epmd_port)
        self.nodes = [
            PrivateRabbitmq(programs, formation=formation, member=member, managed=managed) for member in range(NODES)
        ]
        self._formed = False

    @property
    def urls(self) -> list[str]:
        """The nodes' URLs."""
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """All of them, as `OUTBOXKIT_BROKER_URL` takes them."""
        return ",".join(self.urls)

    def start(self, *members: int) -> None:
        """Start these nodes, all if none is named; returns when they take connections.

        Nodes that know each other start at the same time. New ones join a first one that has come up: one that joins
        while another still makes its tables finds them half made, and gives up.
        """
        chosen = [self.nodes[member] for member in members] if members else self.nodes
        if not self._formed:
            self.nodes[0].start()
        for node in chosen:
            node.launch()
        for node in chosen:
            node.wait()
        self._formed = True

    def kill(self, member: int) -> None:
        """SIGKILL a node."""
        self.nodes[member].kill()

    def pause(self, member: int) -> None:
        """Freeze a node."""
        self.nodes[member].pause()

    def resume(self, member: int) -> None:
        """Let a frozen node go on."""
        self.nodes[member].resume()

    def close(self) -> None:
        """Kill all nodes and remove what is theirs; the first has the name server, and goes last."""
        for node in reversed(self.nodes):
            node.close()


def provide_cluster(*, managed: bool = False) -> Cluster:
    """A cluster from the programs of this machine, installed where they are missing; a container is one node only."""
    return Cluster(_programs(), managed=managed)


def provide_managed(**settings: str) -> PrivateRabbitmq:
    """A node with the management plugin and these settings."""
    return PrivateRabbitmq(_programs(), settings=settings, managed=True)


def provide_encrypted(tls: Certificates) -> PrivateRabbitmq:
    """A node whose clients may, and from other accounts than the tests' own must, show a certificate."""
    return PrivateRabbitmq(_programs(), tls=tls)


def _programs() -> rabbitmq.Programs:
    machine = this_machine()
    if rabbitmq.find_programs() is None and machine.may_install():
        machine.install(RABBITMQ.package)
    programs = rabbitmq.find_programs()
    if programs is None:
        raise ServersUnavailable(
            "A cluster, or a node with management, needs RabbitMQ's programs on this machine: "
            "apt-get install rabbitmq-server"
        )
    return programs
