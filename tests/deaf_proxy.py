"""A PostgreSQL proxy that swallows notifications, as a pooler in transaction mode does."""

import contextlib
import socket
import struct
import threading

NOTIFICATION = b"A"


class DeafProxy:
    """Forwards unencrypted connections to a PostgreSQL server, and every message of the server's but notifications."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.swallowed = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for forward in (self._forward_requests, self._forward_answers):
                    thread = threading.Thread(target=forward, args=(client, server), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := client.recv(65_536):
                server.sendall(chunk)
            server.shutdown(socket.SHUT_WR)

    def _forward_answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), server.makefile("rb") as answers:
            while head := answers.read(5):
                kind, length = struct.unpack("!cI", head)
                body = answers.read(length - 4)
                if kind == NOTIFICATION:
                    self.swallowed += 1
                else:
                    client.sendall(head + body)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
