"""PgBouncer for the tests: a pooler of our own in front of a database, in session mode or in transaction mode."""

import os
import shutil
import signal
from pathlib import Path

from sqlalchemy import make_url

from tests.servers.home import SEARCH_PATH, Home, Process
from tests.servers.ports import free_ports
from tests.servers.postgresql import answers
from tests.servers.waiting import not_started, read_log, wait_until

CONFIGURATION = """
[databases]
shop = host={host} port={port} dbname={database} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
max_client_conn = 400
default_pool_size = {size}
server_round_robin = {in_turn}
"""
START_SECONDS = 60


class Pgbouncer:
    """A pooler on a free port of 127.0.0.1, which gives at most `size` server sessions out.

    Attributes:
        url: the database behind the pooler.
    """

    def __init__(self, program: Path, database_url: str, *, mode: str, size: int) -> None:
        self._program = program
        self._home = Home("postgres")
        (self._listen,) = free_ports(1)
        self._database, self._mode, self._size, self._in_turn = make_url(database_url), mode, size, False
        pooled = self._database.set(host="127.0.0.1", port=self._listen, database="shop")
        self.url = pooled.render_as_string(hide_password=False)
        self._process: Process | None = None

    def start(self) -> None:
        """Start it and wait for a connection."""
        command = (self._program, self._configure())
        process = self._process = self._home.spawn(command, {}, "pgbouncer.log", signal.SIGTERM)
        if not wait_until(lambda: answers(self.url), process.alive, START_SECONDS):
            raise not_started("PgBouncer", read_log(self._home.folder / "pgbouncer.log"))

    def configure(self, *, mode: str | None = None, in_turn: bool = False) -> None:
        """Change the mode, and whether idle server sessions are given out in turn, while clients are connected."""
        self._mode, self._in_turn = mode or self._mode, in_turn
        self._configure()
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGHUP)

    def close(self) -> None:
        """End it and remove its folder."""
        self._home.close()

    def _configure(self) -> Path:
        url = self._database
        text = CONFIGURATION.format(
            host=url.host, port=url.port, database=url.database, user=url.username, password=url.password,
            listen=self._listen, mode=self._mode, size=self._size, in_turn=int(self._in_turn),
        )  # fmt: skip
        return self._home.write("pgbouncer.ini", text)


def find_program() -> Path | None:
    """PgBouncer's program on this machine."""
    found = shutil.which("pgbouncer", path=SEARCH_PATH)
    return Path(found) if found else None
