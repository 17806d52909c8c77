"""Real servers of the idempotent shop, in processes of their own that can be killed at any place.

`python -m tests.integration.idempotent_server` is a nursery: it has imported everything, and forks a server for each
line on its standard input. A server may be told to kill itself at the place of a number. Places are before and after
each database statement, before and after a commit, and where the shop calls `at`.
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


class Servers:
    """Servers of one shop, one after the other, on one port, whose queue of connections stays when they die."""

    def __init__(self, nursery: "Nursery", port: int, shop: dict[str, Any]) -> None:
        self._nursery = nursery
        self._wanted = {"port": port, **shop}
        self._running = 0
        self.url = f"http://127.0.0.1:{port}"

    def start(self, dies_at: int = 0) -> None:
        """Start a server that dies at the place of this number; 0: nowhere."""
        self._running = int(self._nursery.ask({**self._wanted, "dies_at": dies_at}))

    def died(self) -> bool:
        """Wait for the end of a server that kills itself."""
        self._running = 0
        return int(self._nursery.line()) == signal.SIGKILL

    def stop(self) -> None:
        """Kill the server that runs, if there is one."""
        if self._running:
            os.kill(self._running, signal.SIGKILL)
            self.died()

    def survivors(self, post: Callable[[int], httpx.Response]) -> Iterator[tuple[int, httpx.Response]]:
        """Have servers die at one place after the other, in the middle of a request, and another one get its retry.

        Ends with the first place that a request does not come to.

        Args:
            post: sends the request of this number, again with every call.

        Yields:
            The number of the place, from 1, and the answer to the retry; 409 is not taken for an answer.
        """
        for place in itertools.count(1):
            self.start(place)
            try:
                answer = post(place)
            except httpx.TransportError:
                assert self.died()
            else:
                yield place, answer
                return
            self.start()
            yield place, eventually(lambda place=place: post(place), lambda answer: answer.status_code != 409)
            self.stop()


class Nursery:
    """The process that servers are forked from; one for all tests, for it takes seconds to import everything."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, "-m", __name__], cwd=ROOT, start_new_session=True, **pipes)

    @contextlib.contextmanager
    def serve(self, url: str, calls: Path, **rules: float) -> Iterator[Servers]:
        """Servers of a shop, none of which runs yet.

        Args:
            url: of a database with the tables of the package.
            calls: the file that stands for an outside system.
            rules: of the shop, times in seconds.
        """
        made = create_engine(url)
        idempotent_shop.Tables.metadata.create_all(made)
        made.dispose()
        servers = Servers(self, int(self.ask({})), {"url": url, "calls": str(calls), "rules": rules})
        try:
            yield servers
        finally:
            servers.stop()

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass

    def ask(self, wanted: dict[str, Any]) -> str:
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return self.line()

    def line(self) -> str:
        line = self._process.stdout.readline()
        assert line, f"the nursery has ended: {self._process.poll()}"
        return line.strip()


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


def run(listening: socket.socket, wanted: dict[str, Any]) -> None:
    fate = Fate(wanted["dies_at"])
    rules = {name: timedelta(seconds=value) for name, value in wanted["rules"].items()}
    app = idempotent_shop.make(wanted["url"], calls=Path(wanted["calls"]), at=fate.at, **rules)
    fate.watch(app.state.engine)
    fate.watch(app.state.async_engine.sync_engine)
    uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off")).run(sockets=[listening])


def main() -> None:
    """For an empty object a new port; for another one a server's process id, and the status that it ended with."""
    ports: dict[int, socket.socket] = {}
    for line in sys.stdin:
        wanted = json.loads(line)
        if not wanted:
            opened = socket.create_server(("127.0.0.1", 0))
            ports[opened.getsockname()[1]] = opened
            print(opened.getsockname()[1], flush=True)
            continue
        child = os.fork()
        if child == 0:
            try:
                run(ports[wanted["port"]], wanted)
            finally:
                os._exit(1)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
