"""Kills private servers whose tests are gone, however they went. Run as a script, never imported.

The guard reads lines `watch PID SIGNAL` and `forget PID` from its standard input. The pipe closes when the Python
that runs the tests ends, be it by SIGKILL: then the guard signals what is still watched and removes the folder.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

PATIENCE_SECONDS = 5.0


def _gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _end(group: int, signum: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)
        while signum != signal.SIGKILL and time.monotonic() < deadline and not _gone(group):
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def guard(folder: str) -> None:
    """Follow the lines on standard input until it closes, then clean up."""
    watched: dict[int, int] = {}
    for line in sys.stdin:
        match line.split():
            case ["watch", pid, signum]:
                watched[int(pid)] = int(signum)
            case ["forget", pid]:
                watched.pop(int(pid), None)
    for group, signum in watched.items():
        _end(group, signum)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.argv[1])
