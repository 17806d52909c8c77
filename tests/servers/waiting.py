"""Waiting for a server to come up."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.servers.server import ServersUnavailable

PAUSE_SECONDS = 0.1


def wait_until(ready: Callable[[], bool], alive: Callable[[], bool], seconds: float) -> bool:
    """Whether `ready` came true within the time, as long as the server was `alive`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and alive():
        if ready():
            return True
        time.sleep(PAUSE_SECONDS)
    return False


def not_started(name: str, log: str) -> ServersUnavailable:
    """The error for a server that did not come up, with the end of its log."""
    tail = "\n".join(log.splitlines()[-20:])
    return ServersUnavailable(f"{name} did not start. The last lines of its log:\n{tail or '(the log is empty)'}")


def read_log(path: Path) -> str:
    """A log file's text, empty if the server never got as far as writing one."""
    return path.read_text(errors="replace") if path.exists() else ""
