"""Ports that stay free while their server is down, and that no other process of tests on this machine is given."""

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from io import FileIO
from pathlib import Path

# Below the range that Linux (32768 and up) and macOS (49152 and up) give to outgoing connections: a client that
# retries while its server is down can then never be given the server's own port as its source.
LOWEST, HIGHEST = 15_000, 32_000
TRIES = 2_000
OURS: set[int] = set()


def free_ports(count: int) -> list[int]:
    """As many different ports as asked for on which nothing listens now."""
    return [free_row(1) for _ in range(count)]


def free_row(count: int) -> int:
    """The first of so many free ports in a row: for a program that takes the ports after its own, too."""
    return next(first for first in _candidates() if all(map(_take, range(first, first + count))))


def _candidates() -> Iterator[int]:
    return iter(random.SystemRandom().sample(range(LOWEST, HIGHEST), k=TRIES))


def _take(port: int) -> bool:
    """Whether it is free and ours from now on, until this process ends: its server may take seconds to listen."""
    if port in OURS or not _is_free(port):
        return False
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    OURS.add(port)
    return True


@cache
def _locks() -> FileIO:
    """A file of which each byte that a process locks is a port that it has taken."""
    return FileIO(Path(tempfile.gettempdir(), f"outboxkit-ports-{os.getuid()}"), "ab")


def _is_free(port: int) -> bool:
    with socket.socket() as listener, contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        return True
    return False
