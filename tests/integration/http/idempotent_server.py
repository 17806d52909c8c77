"""Real servers of the idempotent shop, in processes of their own that can be killed at any place.

`python -m tests.integration.http.idempotent_server SHOP FILE` serves one at an inherited listening socket. It may be
told to kill itself at the place of a number. Places are before and after each database statement, before and
after a commit, and where the shop calls `at`.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from sqlalchemy import Engine, create_engine, event
from werkzeug.serving import WSGIRequestHandler, make_server

from outboxkit.runtime import process
from tests.integration.http import idempotent_shop
from tests.processes import ForkedProcess, start
from tests.support.polling import eventually


class Servers:
    """Servers of one shop, one after the other, on one port, whose queue of connections stays when they die."""

    def __init__(self, listening: socket.socket, shop: dict[str, Any]) -> None:
        self._listening = listening
        self._shop = shop
        self._running: ForkedProcess | None = None
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def start(self, dies_at: int = 0) -> None:
        """Start a server that dies at the place of this number; 0: nowhere."""
        shop = json.dumps({**self._shop, "dies_at": dies_at})
        program = [sys.executable, "-m", __name__, shop, "{file}"]
        with Path(os.devnull).open("wb") as nothing:
            self._running = start(program, environment=os.environ, output=nothing, keep=self._listening.fileno())

    def died(self) -> bool:
        """Wait for the end of a server that kills itself."""
        assert self._running is not None
        return self._running.wait(60) == -signal.SIGKILL

    def stop(self) -> None:
        """Kill the server that runs, if there is one."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def survivors(
        self, post: Callable[[int], httpx.Response], between: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, httpx.Response]]:
        """Have servers die at one place after the other, in the middle of a request, and another one get its retry.

        Ends with the first place that a request does not come to.

        Args:
            post: sends the request of this number, again with every call.
            between: is called when a server has died, before its successor starts.

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
            between()
            self.start()
            yield place, eventually(lambda place=place: post(place), lambda answer: answer.status_code != 409)
            self.stop()


@contextlib.contextmanager
def serve(url: str, calls: Path, *, shop: str) -> Iterator[Servers]:
    """Servers of a shop, none of which runs yet.

    Args:
        url: of a database with the tables of the package.
        calls: the file that stands for an outside system.
        shop: `fastapi`, which has the endpoints in steps as well, or `flask`.
    """
    engine = create_engine(url)
    idempotent_shop.Tables.metadata.create_all(engine)
    engine.dispose()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        servers = Servers(listening, {"url": url, "calls": str(calls), "shop": shop})
        try:
            yield servers
        finally:
            servers.stop()


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


class Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        pass


def run(listening: socket.socket, wanted: dict[str, Any]) -> None:
    fate, engine = Fate(wanted["dies_at"]), idempotent_shop.engine_for(wanted["url"])
    fate.watch(engine)
    if wanted["shop"] == "flask":
        app = idempotent_shop.make_flask(engine)
        make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet, fd=listening.fileno()).serve_forever()
        return
    async_engine = process.engine(wanted["url"], name="shop", pool_size=20)
    fate.watch(async_engine.sync_engine)
    web = idempotent_shop.make(engine, async_engine, calls=Path(wanted["calls"]), at=fate.at)
    uvicorn.Server(uvicorn.Config(web, log_level="critical", lifespan="off")).run(sockets=[listening])


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[2])), json.loads(sys.argv[1]))
