"""RabbitMQ for the tests: a private node or a container."""

import os
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]

from tests.servers.certificates import Certificates
from tests.servers.containers import Container
from tests.servers.home import SEARCH_PATH, Home, Process
from tests.servers.ports import free_ports
from tests.servers.waiting import not_started, read_log, wait_until

IMAGE = "rabbitmq:4-alpine"
PORT = 5672
START_SECONDS = 120
STOP_SECONDS = 60
NAMES_SECONDS = 3
LOG = "rabbitmq.log"
USER = "outboxkit"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Formation:
    """What the nodes of one cluster have in common.

    Attributes:
        ports: where each node listens; its name comes from it.
        epmd_port: where their one name server listens; the first node starts it.
        cookie: their secret among themselves.
        password: of the one user.
    """

    ports: tuple[int, ...]
    epmd_port: int
    cookie: str = field(default_factory=lambda: secrets.token_hex(16))
    password: str = field(default_factory=lambda: secrets.token_hex(12))

    def settings(self, member: int) -> str:
        """The lines of rabbitmq.conf by which a node joins the first one, which begins alone: no two may do that."""
        if member == 0:
            return ""
        found = "cluster_formation.classic_config.nodes"
        return (
            "cluster_formation.peer_discovery_backend = classic_config\n"
            f"{found}.1 = {_name(self.ports[0])}\n{found}.2 = {_name(self.ports[member])}\n"
            "cluster_formation.discovery_retry_interval = 200\ncluster_formation.discovery_retry_limit = 500\n"
        )


@dataclass(frozen=True)
class Programs:
    """The two programs of a node: its start script, and Erlang's name server."""

    rabbitmq_server: Path
    epmd: Path

    def __str__(self) -> str:
        return str(self.rabbitmq_server.parent)


class PrivateRabbitmq:
    """A node of our own, from programs on this machine, with a name server and a cookie of its own.

    Args:
        programs: what it is run with.
        settings: of the Erlang application `rabbit`, such as `max_message_size`.
        formation: of its cluster; without one it is alone.
        member: which node of the cluster it is.
        managed: whether it has the management plugin, which answers at `management_url`.
        tls: it takes encrypted connections too, at `tls_url`, and asks for a certificate of this authority: the
            certificate's name is the user.
    """

    controllable = True

    def __init__(
        self,
        programs: Programs,
        *,
        settings: Mapping[str, str] = NO_SETTINGS,
        formation: Formation | None = None,
        member: int = 0,
        managed: bool = False,
        tls: Certificates | None = None,
    ) -> None:
        self._programs = programs
        self._settings = settings
        self._tls = tls
        self._home = Home("rabbitmq")
        port, epmd_port, self._distribution_port, self._management_port, self._tls_port = free_ports(5)
        self._managed = managed
        self._formation = formation or Formation((port,), epmd_port)
        self._member = member
        self._port = self._formation.ports[member]
        self.name = _name(self._port)
        self.url = _url("127.0.0.1", self._port, self._formation.password)
        self.tls_url = f"amqps://localhost:{self._tls_port}/"
        self._epmd: Process | None = None
        self._node: Process | None = None
        self._configured = False

    def start(self) -> None:
        """Start the name server and the node, and wait for a connection."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the name server and the node, unless they run."""
        if self._node is not None and self._node.alive():
            return
        self._configure()
        if self._member == 0 and (self._epmd is None or not self._epmd.alive()):
            # In the foreground: one that the node starts for itself would outlive everything.
            command = (self._programs.epmd, "-port", str(self._formation.epmd_port), "-address", "127.0.0.1")
            self._epmd = self._home.spawn(command, {}, LOG, signal.SIGKILL)
        self._node = self._home.spawn((self._programs.rabbitmq_server,), self._environment(), LOG, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for a connection to the node that was launched."""
        node = self._node
        if node is None or not wait_until(lambda: answers(self.url), node.alive, START_SECONDS):
            self._end(signal.SIGKILL)
            raise not_started("RabbitMQ", read_log(self._home.folder / LOG))

    def pause(self) -> None:
        """Freeze the node: its connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen node go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the node cleanly; the name server stays for the next start."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the node, once it has written the names of its quorum queues.

        It does so a second after it has declared one. A node of version 3.10 that is killed before comes back with a
        queue that answers nobody.
        """
        if self._node is not None:
            wait_until(self._has_written_names, self._node.alive, NAMES_SECONDS)
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Kill the node and the name server, and remove their folder."""
        self._end(signal.SIGKILL)
        self._home.close()

    def _has_written_names(self) -> bool:
        for names in self._home.folder.glob("nodes/*/quorum/*/names.dets"):
            written = names.read_bytes()
            if any(each.is_dir() and each.name.encode() not in written for each in names.parent.iterdir()):
                return False
        return True

    def execute(self, program: str, *arguments: str) -> None:
        """Run one of RabbitMQ's own programs, such as `rabbitmqctl`, against this node."""
        self._home.run((self._programs.rabbitmq_server.with_name(program), *arguments), self._environment())

    def _signal(self, signum: signal.Signals) -> None:
        if self._node is not None:
            os.killpg(self._node.pid, signum)

    def _end(self, signum: signal.Signals) -> None:
        if self._node is not None:
            self._home.end(self._node, signum, STOP_SECONDS)
            self._node = None

    def _configure(self) -> None:
        if self._configured:
            return
        for name in ("nodes", "logs", "conf.d", "plugins"):
            self._home.make_folder(name)
        cookie = self._home.write(".erlang.cookie", self._formation.cookie)
        cookie.chmod(0o400)
        named = {"rabbitmq_management": self._managed, "rabbitmq_auth_mechanism_ssl": self._tls is not None}
        self._home.write("enabled_plugins", f"[{','.join(name for name, wanted in named.items() if wanted)}].\n")
        self._home.write("advanced.config", "[].\n")
        self._home.write(
            "rabbitmq.conf",
            f"default_user = {USER}\ndefault_pass = {self._formation.password}\ndisk_free_limit.absolute = 50MB\n"
            f"{self._formation.settings(self._member)}{self._management()}{self._encryption()}",
        )
        self._configured = True

    @property
    def management_url(self) -> str:
        """Where the management plugin answers, with user and password."""
        return f"http://{USER}:{self._formation.password}@127.0.0.1:{self._management_port}"

    def _management(self) -> str:
        port = self._management_port
        return f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n" if self._managed else ""

    def _encryption(self) -> str:
        if self._tls is None:
            return ""
        self._tls.give(self._home)
        folder = self._home.folder
        return (
            f"listeners.ssl.1 = 127.0.0.1:{self._tls_port}\nssl_options.cacertfile = {folder}/ca.pem\n"
            f"ssl_options.certfile = {folder}/server.pem\nssl_options.keyfile = {folder}/server.key\n"
            "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n"
            "ssl_cert_login_from = common_name\n"
            "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = AMQPLAIN\nauth_mechanisms.3 = EXTERNAL\n"
        )

    def _environment(self) -> dict[str, str]:
        folder = self._home.folder
        return {
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(
                ("-kernel inet_dist_use_interface {127,0,0,1}", *_erlang(self._settings))
            ),
            "ERL_EPMD_PORT": str(self._formation.epmd_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(folder / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "conf.d"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "nodes"),
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_LOGS": "-",
            # The script then becomes the node instead of standing between it and its signals.
            "RUNNING_UNDER_SYSTEMD": "true",
        }


def rabbitmq_container(*, settings: Mapping[str, str] = NO_SETTINGS) -> Container:
    """RabbitMQ in a container, with these settings of the Erlang application `rabbit`."""
    password = secrets.token_hex(12)
    environment = {"RABBITMQ_DEFAULT_USER": "outboxkit", "RABBITMQ_DEFAULT_PASS": password}
    if settings:
        environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] = " ".join(_erlang(settings))
    return Container(
        image=IMAGE,
        port=PORT,
        environment=environment,
        command=(),
        make_url=lambda host, port: _url(host, port, password),
        answers=answers,
        stop_signal="SIGTERM",
    )


def find_programs() -> Programs | None:
    """RabbitMQ's own start script, before wrappers that insist on an account; and epmd, and an `erl` for both."""
    patterns = ("usr/lib/rabbitmq/bin", "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "opt/homebrew/opt/rabbitmq/sbin",
                "usr/local/opt/rabbitmq/sbin")  # fmt: skip
    folders = [str(folder) for pattern in patterns for folder in sorted(Path("/").glob(pattern), reverse=True)]
    server = shutil.which("rabbitmq-server", path=os.pathsep.join((*folders, SEARCH_PATH)))
    runtime = [str(folder) for folder in Path("/").glob("usr/lib/erlang/erts-*/bin")]
    epmd = shutil.which("epmd", path=os.pathsep.join((SEARCH_PATH, *runtime)))
    if server is None or epmd is None or shutil.which("erl", path=SEARCH_PATH) is None:
        return None
    return Programs(Path(server), Path(epmd))


def connect(server_url: str) -> None:
    """Open and close a connection; pika.exceptions.AMQPError or OSError if that fails."""
    parameters = pika.URLParameters(server_url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 10
    pika.BlockingConnection(parameters).close()


def answers(server_url: str) -> bool:
    """Whether a connection can be opened."""
    parameters = pika.URLParameters(server_url)
    # pika logs an error for each attempt that fails: it is asked only once the server speaks AMQP.
    if not _greets(parameters.host, parameters.port):
        return False
    try:
        connect(server_url)
    except (pika.exceptions.AMQPError, OSError):
        return False
    return True


def _greets(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


def _erlang(settings: Mapping[str, str]) -> list[str]:
    return [f"-rabbit {name} {value}" for name, value in settings.items()]


def _name(port: int) -> str:
    return f"okit-{port}@localhost"


def _url(host: str, port: int, password: str) -> str:
    return f"amqp://outboxkit:{password}@{host}:{port}/"
