"""A PostgreSQL proxy that swallows notifications, as a pooler in transaction mode does."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.support.tcp_proxy import TcpProxy

NOTIFICATION = b"A"


class DeafProxy(TcpProxy):
    """Forwards unencrypted connections to a PostgreSQL server, and every message of the server's but notifications."""

    def __init__(self, host: str, port: int) -> None:
        self.swallowed = 0
        super().__init__(host, port)

    def _read(self, source: socket.socket, gate: threading.Event) -> Iterator[bytes]:
        if gate is self._upstream:
            yield from super()._read(source, gate)
            return
        with contextlib.suppress(EOFError), source.makefile("rb") as answers:
            while head := answers.read(5):
                kind, length = struct.unpack("!cI", head)
                body = answers.read(length - 4)
                if kind == NOTIFICATION:
                    self.swallowed += 1
                else:
                    yield head + body
