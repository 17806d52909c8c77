"""A process that a supervisor has started: how it learns that it is to stop, and how it says why it ended."""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

VARIABLE = "_OUTBOXKIT_SUPERVISED"
"""The variable with the process's number and its inherited files. It is no setting, and no other process sees it."""


START_SECONDS = 10.0
"""An error within this time after a process began its work counts as a failure to start."""


@dataclass(slots=True)
class Supervised:
    """What a process has from its supervisor.

    Attributes:
        number: of the process, from 1.
        line: a socket. The supervisor shuts its end down for a stop; if the supervisor ends, the system closes it.
        admin: the listening socket of the process's admin port, which the supervisor asks; None: there is none.
        began_at: when it began to work, by the monotonic clock; None: it has not.
    """

    number: int
    line: socket.socket
    admin: socket.socket | None = None
    began_at: float | None = None

    def watch(self, stop: Callable[[], object], *, seconds: float) -> None:
        """Call `stop`, from a thread, once this process is to stop. It is ended if it is there so much later.

        A signal would count twice in a process that gets one of its own, as systemd sends it to all of a service.
        """
        self.began_at = time.monotonic()

        def wait() -> None:
            with suppress(OSError):
                self.line.recv(1)
            with suppress(RuntimeError):  # the event loop is closed already
                stop()
            time.sleep(seconds)
            os._exit(1)

        threading.Thread(target=wait, name="outboxkit supervised", daemon=True).start()

    def tell(self, why: str) -> None:
        """Tell the supervisor with which error this process ends, and whether it failed to start."""
        is_start = self.began_at is None or time.monotonic() - self.began_at < START_SECONDS
        with suppress(OSError):
            self.line.sendall(bytes((is_start,)) + why.encode(errors="backslashreplace"))


@cache
def supervised() -> Supervised | None:
    """What this process has from its supervisor; None if it was started by anybody else."""
    number, *files = map(int, os.environ.pop(VARIABLE, "0").split(","))
    if not number:
        return None
    sockets = [socket.socket(fileno=file) for file in files]
    for each in sockets:
        each.set_inheritable(False)
    line, *rest = sockets
    return Supervised(number, line, rest[0] if rest else None)
