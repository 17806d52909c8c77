"""Free ports that stay free while their server is down."""

import contextlib
import random
import socket

# Below the range that Linux (32768 and up) and macOS (49152 and up) give to outgoing connections: a client that
# retries while its server is down can then never be given the server's own port as its source.
LOWEST, HIGHEST = 15_000, 32_000


def free_ports(count: int) -> list[int]:
    """As many different ports as asked for on which nothing listens now."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(LOWEST, HIGHEST), k=2_000):
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    return found


def free_row(count: int) -> int:
    """The first of so many free ports in a row: for a program that takes the ports after its own, too."""
    rows = (range(first, first + count) for first in free_ports(200))
    return next(row[0] for row in rows if all(map(_is_free, row)))


def _is_free(port: int) -> bool:
    with socket.socket() as listener, contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        return True
    return False
