"""A process that has imported everything, and forks a Python program for each request.

A program that is started here is a real process: it has its own environment, folder, arguments and files, it can be
killed at any instruction, and it ends as any Python does. Only its imports are already there, which saves a second or
more of every start. A request is a JSON line on a connection, with the files that the program is to have. The answer is
the process id, and the status once it has ended, twelve characters each. If the connection closes, the program is
killed.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_FILES = 16
LONGEST_REQUEST = 1 << 20
LIBRARIES = (
    *("aio_pika", "aiosqlite", "alembic.autogenerate", "alembic.command", "alembic.config", "anyio", "asyncio"),
    *(
        "fastapi",
        "flask",
        "h11",
        "httpx",
        "logging.config",
        "psycopg",
        "pydantic",
        "rich.console",
        "rich.table",
        "sqlite3",
    ),
    *("sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.aiosqlite", "sqlalchemy.ext.asyncio"),
    *(
        "stringprep",
        "structlog",
        "tenacity",
        "typer",
        "uvicorn",
        "uvicorn.loops.asyncio",
        "uvicorn.protocols.http.h11_impl",
    ),
    *("werkzeug.serving", "tests.acceptance.shop", "tests.integration.http.idempotent_shop"),
)
"""What programs import beside outboxkit, also what libraries import only when it is used."""


class ForkServer:
    """Forks programs and reports their ends; in a forked process, `serve` returns the request for that process."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._wakeup, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._waker = waker
        self._running: dict[int, socket.socket] = {}
        for file, act in ((self._listener, self._accept), (self._wakeup, self._reap), (sys.stdin, self._leave)):
            self._selector.register(file, selectors.EVENT_READ, act)

    def serve(self) -> dict[str, Any]:
        """Fork for requests until standard input closes; returns in forked processes only."""
        while True:
            for key, _ in self._selector.select():
                request = key.data(key.fileobj)
                if request is not None:
                    return request

    def _accept(self, listener: socket.socket) -> dict[str, Any] | None:
        connection, _ = listener.accept()
        line, files, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, MOST_FILES)
        while line and not line.endswith(b"\n"):
            line += connection.recv(LONGEST_REQUEST)
        if not line:
            connection.close()
            return None
        if (child := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return {**json.loads(line), "files": files}
        for file in files:
            os.close(file)
        self._running[child] = connection
        self._selector.register(connection, selectors.EVENT_READ, self._kill_abandoned)
        connection.sendall(b"%12d" % child)
        return None

    def _reap(self, wakeup: socket.socket) -> None:
        wakeup.recv(4096)
        while self._running:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            connection = self._running.pop(child)
            with suppress(KeyError):  # its other end is gone
                self._selector.unregister(connection)
            with suppress(OSError), connection:
                connection.sendall(b"%12d" % status)

    def _kill_abandoned(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        for child in (child for child, waiting in self._running.items() if waiting is connection):
            os.kill(child, signal.SIGKILL)

    def _leave(self, _: object) -> None:
        for child in self._running:
            os.kill(child, signal.SIGKILL)
        os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Turn this process into the program of the request, up to its first instruction, and run it."""
    files: list[int] = request["files"]
    for wanted, file in enumerate(files[:3]):
        os.dup2(file, wanted)
    kept = files[3:]
    for file in range(3, max(files) + 64):
        if file not in kept:
            with suppress(OSError):
                os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    code: object = None
    try:
        run([argument.replace("{file}", str(kept[0])) if kept else argument for argument in request["command"]])
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int):
        leave(code or 0)
    sys.exit(code)


def leave(code: int) -> None:
    """End as Python does, but for freeing thousands of modules one by one, which takes longer than most programs."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


def run(command: list[str]) -> None:
    """Run what `python …` would, or a Python script that has been installed as a command."""
    program, *arguments = command
    if not Path(program).name.startswith("python"):
        arguments = command
    sys.path[:] = list(search_path("" if arguments[0] in ("-m", "-c") else str(Path(arguments[0]).parent)))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if "LD_PRELOAD" in os.environ or any(Path(path, "sitecustomize.py").exists() for path in paths):
        os.execv(sys.executable, [sys.executable, *arguments])
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(sys.argv[0], run_name="__main__")


def search_path(first: str) -> Iterator[str]:
    """Where Python would look for modules: the script's folder, PYTHONPATH, and what is installed."""
    yield first or str(Path.cwd())
    yield from filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    yield from INSTALLED


def import_everything() -> None:
    """Import what programs need, and take it from the garbage collector, so that they share its memory."""
    import outboxkit

    for name in LIBRARIES:
        importlib.import_module(name)
    for found in pkgutil.walk_packages(outboxkit.__path__, "outboxkit."):
        if found.name != "outboxkit.__main__":
            importlib.import_module(found.name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    root = str(Path.cwd())
    INSTALLED = [entry for entry in sys.path if entry not in ("", root)]
    import_everything()
    server = ForkServer(sys.argv[1])
    print("ready", flush=True)
    become(server.serve())
