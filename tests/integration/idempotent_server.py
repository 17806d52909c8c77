"""A real server of the idempotent shop, in a process of its own that can be killed at any place.

    python -m tests.integration.idempotent_server URL CALLS RULES < numbers

A nursery: it has imported everything, and for each number on its standard input forks a server, which kills itself at
the place of this number (0: nowhere). Places are before and after each database statement, before and after a commit,
and where the shop calls `at`.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from sqlalchemy import Engine, create_engine, event

from tests.integration import idempotent_shop
from tests.polling import eventually

ROOT = Path(__file__).parents[2]


class Nursery:
    """The parent's side: servers one after the other, on one socket that stays."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}"

    def start(self, dies_at: int = 0) -> int:
        """Start a server; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{dies_at}\n")
        self._process.stdin.flush()
        return int(self._line())

    def ended(self) -> str:
        """Wait for the end of the server that was started last."""
        return self._line()

    def survivors(self, post: Callable[[int], httpx.Response]) -> Iterator[tuple[int, httpx.Response]]:
        """Have servers die at one place after the other, in the middle of a request, and another one get its retry.

        Ends with the first place that a request does not come to.

        Args:
            post: sends the request of this number, again with every call.

        Yields:
            The number of the place, from 1, and the answer to the retry; 409 is not taken for an answer.
        """
        for place in itertools.count(1):
            doomed = self.start(place)
            try:
                answer = post(place)
            except httpx.TransportError:
                assert self.ended() == str(signal.SIGKILL.value), "killed, and nothing else"
            else:
                self.stop(doomed)
                yield place, answer
                return
            server = self.start()
            yield place, eventually(lambda place=place: post(place), lambda answer: answer.status_code != 409)
            self.stop(server)

    def stop(self, server: int) -> None:
        os.kill(server, signal.SIGKILL)
        self.ended()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the nursery has ended: {self._process.poll()}"
        return line.strip()


@contextlib.contextmanager
def nursery(url: str, calls: Path, **rules: float) -> Iterator[Nursery]:
    """Servers of the shop on a database of which the tables are there.

    Args:
        url: of the database.
        calls: the file that stands for an outside system.
        rules: of the shop, times in seconds.
    """
    made = create_engine(url)
    idempotent_shop.Base.metadata.create_all(made)
    made.dispose()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", __name__, url, str(calls), json.dumps(rules), str(listening.fileno())]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield Nursery(process, listening.getsockname()[1])
            finally:
                os.killpg(process.pid, signal.SIGKILL)


class Fate:
    """Counts places, and dies at one."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at

    def at(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, engine: Engine) -> None:
        for name in ("before_cursor_execute", "after_cursor_execute", "commit", "rollback", "checkin"):
            event.listen(engine, name, self.at)


def serve(url: str, calls: Path, rules: dict[str, float], listening: int, dies_at: int) -> None:
    fate = Fate(dies_at)
    given = {name: timedelta(seconds=value) for name, value in rules.items()}
    app = idempotent_shop.make(url, calls=calls, at=fate.at, **given)
    if dies_at:
        fate.watch(app.state.engine)
        fate.watch(app.state.async_engine.sync_engine)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    server.run(sockets=[socket.socket(fileno=listening)])


def main() -> None:
    url, calls, rules, listening = sys.argv[1:]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            serve(url, Path(calls), json.loads(rules), int(listening), int(line))
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
