"""PostgreSQL for the tests: a private instance, a container, and databases within any server."""

import os
import platform
import secrets
import signal
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL, make_url

from tests.servers.certificates import Certificates
from tests.servers.containers import Container
from tests.servers.home import SEARCH_PATH, Home, Process
from tests.servers.ports import free_ports
from tests.servers.waiting import not_started, read_log, wait_until

IMAGE = "postgres:16-alpine"
PORT = 5432
# A killed process does not lose what the operating system holds for it, so committed data survives kill() without
# fsync; only a machine that loses power would miss it.
SETTINGS = {
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
}
STOP_SECONDS = 30
START_SECONDS = 120


class PrivatePostgresql:
    """An instance of our own, from programs on this machine, on a free port of 127.0.0.1.

    Args:
        programs: the folder of its programs.
        tls: it takes encrypted connections too, and lets in whoever shows a certificate of this authority for the role.
        settings: of the server, beside those of all tests.
    """

    controllable = True

    def __init__(self, programs: Path, *, tls: Certificates | None = None, **settings: str) -> None:
        self._programs, self._settings = programs, SETTINGS | settings
        self._tls = tls
        self._home = Home("postgres")
        self.data = self._home.make_folder("data")
        self._password = secrets.token_hex(12)
        (self._port,) = free_ports(1)
        self.url = _url("127.0.0.1", self._port, self._password)
        self._process: Process | None = None

    def start(self) -> None:
        """Create the cluster the first time, start it and wait for a connection."""
        if self._process is not None and self._process.alive():
            return
        if not (self.data / "PG_VERSION").exists():
            self._create_cluster()
        settings = self._settings | {
            "port": str(self._port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._home.folder),
        }
        if self._tls is not None:
            names = {"ssl_ca_file": "ca.pem", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key"}
            settings |= {"ssl": "on"} | {name: str(self._home.folder / file) for name, file in names.items()}
        arguments: list[str | Path] = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = (self._programs / "postgres", "-D", self.data, *arguments)
        # SIGQUIT is PostgreSQL's immediate shutdown: no checkpoint, recovery at the next start. SIGKILL would leave
        # backends behind, which lead sessions of their own.
        process = self._process = self._home.spawn(command, {}, "postgresql.log", signal.SIGQUIT)
        if not wait_until(lambda: answers(self.url), process.alive, START_SECONDS):
            self.kill()
            raise not_started("PostgreSQL", read_log(self._home.folder / "postgresql.log"))

    def stop(self) -> None:
        """PostgreSQL's fast shutdown."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """PostgreSQL's immediate shutdown."""
        self._end(signal.SIGQUIT)

    def close(self) -> None:
        """Kill the instance and remove its folder."""
        self.kill()
        self._home.close()

    def standby(self) -> "PrivatePostgresql":
        """A second instance, started, that streams the write-ahead log of this one."""
        other = PrivatePostgresql(self._programs)
        other._password = self._password
        other.url = _url("127.0.0.1", other._port, self._password)
        options = ("-R", "-X", "stream", "--checkpoint=fast", "--no-sync")
        other._home.run(
            (
                self._programs.joinpath("postgres").resolve().with_name("pg_basebackup"),
                "-d",
                _conninfo(self.url),
                "-D",
                other.data,
                *options,
            ),
            {},
        )
        other.start()
        return other

    def _end(self, signum: signal.Signals) -> None:
        if self._process is not None:
            self._home.end(self._process, signum, STOP_SECONDS)
            self._process = None

    def _create_cluster(self) -> None:
        if self._tls is not None:
            self._tls.give(self._home)
        password = self._home.write("password", self._password)
        self._home.run(
            (
                self._programs / "initdb", "-D", self.data, "--username=outboxkit",
                "--auth=md5", f"--pwfile={password}", "--encoding=UTF8", f"--locale={_locale()}", "--no-sync",
            ),
            {},
        )  # fmt: skip
        if self._tls is not None:
            access = self.data / "pg_hba.conf"
            everybody = "host all outboxkit 127.0.0.1/32 md5\nhostssl all all 127.0.0.1/32 cert\n"
            access.write_text(everybody)


def postgresql_container() -> Container:
    """PostgreSQL in a container; the same settings as the private instance."""
    password = secrets.token_hex(12)
    return Container(
        image=IMAGE,
        port=PORT,
        environment={"POSTGRES_USER": "outboxkit", "POSTGRES_PASSWORD": password, "POSTGRES_DB": "postgres"},
        command=["postgres", *(f"-c{name}={value}" for name, value in SETTINGS.items())],
        make_url=lambda host, port: _url(host, port, password),
        answers=answers,
        stop_signal="SIGINT",
    )


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres`: from PATH, then the newest that a package installed."""
    folders = [Path(folder) for folder in SEARCH_PATH.split(os.pathsep) if folder]
    patterns = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin",
                "usr/local/opt/postgresql@*/bin")  # fmt: skip
    for pattern in patterns:
        folders += sorted(Path("/").glob(pattern), key=_version, reverse=True)
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


def connect(server_url: str) -> None:
    """Open and close a connection; psycopg.OperationalError if that fails."""
    psycopg.connect(_conninfo(server_url), connect_timeout=5).close()


def answers(server_url: str) -> bool:
    """Whether a connection can be opened."""
    try:
        connect(server_url)
    except psycopg.OperationalError:
        return False
    return True


def with_driver(server_url: str) -> str:
    """The URL as SQLAlchemy wants it: with psycopg as the driver."""
    return make_url(server_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def create_database(server_url: str, name: str, *, template: str = "template0") -> str:
    """Create a database in the server, empty or a copy of another one, and return its URL."""
    # template0: nobody can be connected to it, so that databases may be created at the same time.
    names = sql.Identifier(name), sql.Identifier(template)
    _execute(server_url, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop_database(server_url: str, name: str) -> None:
    """Drop a database if it is there, also from under connections that are still open."""
    _execute(server_url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(server_url: str, statement: sql.Composed) -> None:
    with psycopg.connect(_conninfo(server_url), autocommit=True) as connection:
        connection.execute(statement)


def _conninfo(server_url: str) -> str:
    return make_url(server_url).set(drivername="postgresql").render_as_string(hide_password=False)


def _url(host: str, port: int, password: str) -> str:
    return URL.create("postgresql+psycopg", "outboxkit", password, host, port, "postgres").render_as_string(
        hide_password=False
    )


def _locale() -> str:
    return "C.UTF-8" if platform.system() == "Linux" else "C"


def _version(folder: Path) -> int:
    digits = "".join(filter(str.isdigit, folder.parent.name))
    return int(digits or 0)
