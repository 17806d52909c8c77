"""Processes of outboxkit, as an operator starts and ends them."""

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import start
from tests.support.polling import eventually

STOP_SECONDS = 40


class WorkerProcess:
    """A process that runs until it is stopped, with its log in a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._read_bytes, self._entries = 0, list[dict[str, Any]]()
        with log.open("ab") as output:
            self._process = start(command, environment={**os.environ, **environment}, output=output)

    @property
    def most_memory(self) -> int:
        """The most bytes that it has had in memory so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (found,) = re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
        return int(found) * 1024

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def entries(self, event: str | None = None) -> list[dict[str, Any]]:
        """What it has logged, or its lines with this text; AssertionError for a line that is no log line."""
        with self.log.open("rb") as log:
            log.seek(self._read_bytes)
            *lines, rest = log.read().split(b"\n")
            self._read_bytes = log.tell() - len(rest)
        assert all(line.startswith(b"{") for line in lines), self.log.read_text()
        self._entries += map(json.loads, lines)
        return [entry for entry in self._entries if event in (None, entry["event"])]

    def outcomes(self) -> list[str]:
        """The outcome of each delivery, for a consumer that logs at level debug."""
        return [entry["outcome"] for entry in self.entries("delivery")]

    def wait_for(self, event: str, *, times: int = 1) -> dict[str, Any]:
        """The entry with this text, once it was logged so many times; AssertionError if the process ends before."""

        def logged() -> list[dict[str, Any]]:
            found = self.entries(event)
            assert len(found) >= times or self.is_running, self.log.read_text()
            return found

        return eventually(logged, lambda found: len(found) >= times)[times - 1]

    def assert_away(self, what: str, *because: str, says: str = "is away, waiting") -> None:
        """It has said in one line that it waits for this server, and why: one of these."""
        said = self.wait_for(f"{what} {says}")
        assert any(reason in said["error"] for reason in because), said["error"]
        assert "\n" not in said["error"]
        assert said["level"] == "warning"

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT, without waiting, as Ctrl-C sends it."""
        self._process.send_signal(signal.SIGINT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It does nothing meanwhile, as on a machine that is busy with others."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        return self._process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, once it handles that; the exit code."""
        eventually(lambda: not self.is_running or self._process.catches(signal.SIGTERM))
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
