"""The faults do what networks and servers do, and nothing that they never do."""

import random
import select
import socket
from types import SimpleNamespace
from typing import cast

from tests.faults.faults import ALL, World
from tests.support.polling import eventually
from tests.support.tcp_proxy import TcpProxy


def test_a_silent_connection_never_delivers_what_comes_behind_a_gap():
    """A broker's next delivery would be handled before the one that was lost, which no network does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ProxyUntilTheLastMoment(*listener.getsockname())
        client = socket.create_connection(("127.0.0.1", proxy.port))
        server, _ = listener.accept()
        proxy.client, proxy.server = client, server
        server.sendall(b"before")
        assert client.recv(64) == b"before"
        with ALL["network silent"](cast("World", SimpleNamespace(proxies=[proxy])), random.Random(0)):
            server.sendall(b"lost")
            eventually(lambda: proxy.lost_bytes)
        assert client.recv(64) == b""
        client.close()
        server.close()
        proxy.close()


class ProxyUntilTheLastMoment(TcpProxy):
    """A proxy to which the server still sends when it cuts the connections."""

    client: socket.socket
    server: socket.socket

    def cut(self) -> None:
        """Cut them once those bytes are lost, or have arrived."""
        lost = self.lost_bytes
        if not self._refusing:
            self.server.sendall(b"behind the gap")
            eventually(lambda: self.lost_bytes > lost or select.select([self.client], [], [], 0)[0])
        super().cut()
