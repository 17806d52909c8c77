"""Starting programs in the fork server: what `subprocess` does, in milliseconds instead of seconds."""

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
NUMBER_BYTES = 12
START_SECONDS = 120
COMMAND = str(Path(sys.executable).with_name("outboxkit"))


class ForkedProcess:
    """A program that runs in a process of its own; like `subprocess.Popen`, as far as tests need it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(START_SECONDS)
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program; subprocess.TimeoutExpired if it has not come by then."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(self._number())
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("a forked program", timeout or 0) from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the program, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def catches(self, number: signal.Signals) -> bool:
        """Whether the program handles this signal by now; true where nobody can know, as when it has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return True
        caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        return caught is None or bool(int(caught[1], 16) >> number - 1 & 1)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        number = self._connection.recv(NUMBER_BYTES, socket.MSG_WAITALL)
        assert number, "the fork server has ended"
        return int(number)


def start(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    output: int | IO[bytes],
    errors: int | IO[bytes] | None = None,
    folder: Path = ROOT,
    keep: int | None = None,
) -> ForkedProcess:
    """Start `python …`, or an installed command that is a Python script.

    Args:
        command: the program and its arguments; `{file}` in them becomes the number of the file to keep.
        environment: all that it gets to see.
        output: the file for its standard output, and for its standard error if `errors` is None.
        errors: the file for its standard error.
        folder: where it runs.
        keep: a further file that it inherits, such as a listening socket.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    request = {"command": [str(part) for part in command], "environment": dict(environment), "folder": str(folder)}
    with Path(os.devnull).open("rb") as nothing:
        files = [nothing.fileno(), _number(output), _number(output if errors is None else errors)]
        line = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [line], files + ([] if keep is None else [keep]))
        connection.sendall(line[sent:])
        return ForkedProcess(connection)


def run_to_end(
    command: Sequence[str | Path], environment: Mapping[str, str], *, seconds: float = 120, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a program that ends by itself, with these variables beside those of the tests."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(command, environment={**os.environ, **environment}, output=output, errors=errors, folder=folder)
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
            process.wait()
        texts = [_text(file) for file in (output, errors)]
    return subprocess.CompletedProcess([str(part) for part in command], code, *texts)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _number(file: int | IO[bytes]) -> int:
    return file if isinstance(file, int) else file.fileno()


@cache
def programs() -> Path:
    """A folder with `python`, `outboxkit` and `alembic` for shells and `make`, which run in the fork server."""
    folder = Path(_server()).with_name("bin")
    folder.mkdir()
    shim = Path(__file__).with_name("shim.py")
    for name in ("alembic", "outboxkit", "python"):
        real = str(Path(sys.executable).with_name(name))
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {shim} {_server()} {real} "$@"\n')
        path.chmod(0o755)
    return folder


@cache
def _server() -> str:
    """The address of this process's fork server, which ends with it."""
    folder = tempfile.TemporaryDirectory(prefix="okit-", dir="/tmp")
    address = f"{folder.name}/forks"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXKIT_")}
    environment["PYTHONIOENCODING"] = "utf-8"  # its streams are those of its programs
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.processes.fork_server", address],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the fork server did not start"

    def leave() -> None:
        with server:  # closes its standard input, at which it ends
            pass
        folder.cleanup()

    atexit.register(leave)
    return address
