"""Relays in processes of their own, seen from outside."""

import json
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.running_relay import Orders, Report

PATIENCE_SECONDS = 600.0


class Relays:
    """Some relays with the same orders: started and ready on entry, ended on exit."""

    def __init__(self, orders: Orders, count: int = 1) -> None:
        command = (sys.executable, "-m", "tests.benchmarks.running_relay")
        pipe = subprocess.PIPE
        self._processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
        self._orders = orders
        self._confirmed, self._wanted = 0, 0
        self._changed = threading.Condition()
        self._readers: list[threading.Thread] = []
        self.reports: list[Report] = []

    def __enter__(self) -> Self:
        try:
            for process in self._processes:
                tell(process, asdict(self._orders))
            ready = [hear(process) == "ready" for process in self._processes]
        except BaseException:
            self._end()
            raise
        if not all(ready):
            self._end()
            raise RuntimeError("a relay did not get ready; what it said is above")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def begin(self) -> None:
        """Let them work."""
        self._readers = [threading.Thread(target=self._read, args=(process,)) for process in self._processes]
        for reader in self._readers:
            reader.start()
        for process in self._processes:
            tell(process, "begin")

    def await_confirmed(self, total: int, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Return once they have confirmed so many messages together."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._confirmed >= total or self._gone(), seconds)
        if not done or self._confirmed < total:
            raise RuntimeError(f"{self._confirmed} of {total} messages were published; what the relays said is above")

    def stop(self) -> list[Report]:
        """Stop them, and hear what they have done."""
        for process in self._processes:
            tell(process, "stop")
        for reader in self._readers:
            reader.join()
        if len(self.reports) != len(self._processes):
            raise RuntimeError("a relay ended before it was told; what it said is above")
        return self.reports

    def _read(self, process: "subprocess.Popen[str]") -> None:
        while (said := hear(process)) is not None:
            with self._changed:
                if isinstance(said, int):
                    self._confirmed += said
                else:
                    self.reports.append(replace(Report(), **said))
                self._changed.notify_all()
        process.wait()
        with self._changed:
            self._changed.notify_all()

    def _gone(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def tell(process: "subprocess.Popen[str]", what: object) -> None:
    """Say this to the process, as a line of JSON."""
    if process.stdin is not None:
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> Any:
    """What it says next; None if it has ended."""
    line = process.stdout.readline() if process.stdout is not None else ""
    return json.loads(line) if line else None
