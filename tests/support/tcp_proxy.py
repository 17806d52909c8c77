"""A TCP proxy whose directions can be held: a network that swallows, between a process and its server."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator


class TcpProxy:
    """Forwards connections to one server; bytes of a held direction are read, kept back, and sent on release."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._upstream, self._downstream = threading.Event(), threading.Event()
        self._upstream.set()
        self._downstream.set()
        self._held = 0
        self._turns, self._spoke_last = 0, self._downstream
        self._sockets: list[socket.socket] = []
        self._silent: set[socket.socket] = set()
        self.lost_bytes = 0
        self._bytes_left: int | None = None
        self._pace: int | None = None
        self._threads: list[threading.Thread] = []
        self._changing, self._refusing = threading.Lock(), False
        self._start(self._accept, self._listener)

    @property
    def held_bytes(self) -> int:
        """How much the client has sent since its direction is held."""
        return self._held

    @property
    def turns(self) -> int:
        """How often the client has spoken after the server: round trips, where it waits for answers."""
        return self._turns

    def hold_client(self) -> None:
        """From now on nothing that the client sends arrives."""
        self._held = 0
        self._upstream.clear()

    def hold_server(self) -> None:
        """From now on nothing that the server sends arrives."""
        self._downstream.clear()

    def swallow(self) -> None:
        """From now on nothing arrives anywhere, and connections can still be opened: half-open."""
        self.hold_client()
        self.hold_server()

    def silence(self) -> None:
        """What the open connections send from now on, also their end, is acknowledged and lost; new ones work."""
        with self._changing:
            self._silent = set(self._sockets)

    def unsilence(self) -> None:
        """Let the open connections through again. What was lost stays lost."""
        self._silent = set()

    def release(self) -> None:
        """Let everything through, also what was kept back."""
        self._upstream.set()
        self._downstream.set()

    def cut(self) -> None:
        """End the connections that are open, and drop what was kept back; new ones are accepted."""
        with self._changing:
            open_now, self._sockets = self._sockets, []
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def lead_to(self, port: int) -> None:
        """Lead new connections to another server of the same host; those that are open stay where they are."""
        self._target = (self._target[0], port)

    def reset_after(self, count: int | None) -> None:
        """The connection whose byte is this one from now, of all that pass, ends behind it; None: none does."""
        self._bytes_left = count

    def throttle(self, pace: int | None) -> None:
        """So many bytes a second pass in each direction of each connection; None: as many as can."""
        self._pace = pace

    def refuse(self) -> None:
        """From now on nobody listens, and the connections that were open have ended."""
        with self._changing:
            self._refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept, self._listener)

    def close(self) -> None:
        """End everything."""
        self.refuse()
        self.release()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._changing:
                    if self._refusing:
                        client.close()
                        server.close()
                        return
                    self._sockets += [client, server]
                for source, sink, gate in ((client, server, self._upstream), (server, client, self._downstream)):
                    self._start(self._forward, source, sink, gate)

    def _forward(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            for chunk in self._read(source, gate):
                self._turns += gate is self._upstream and self._spoke_last is self._downstream
                self._spoke_last = gate
                if gate is self._upstream and not gate.is_set():
                    self._held += len(chunk)
                gate.wait()
                if (pace := self._pace) is not None:
                    time.sleep(len(chunk) / pace)
                if source in self._silent:
                    self.lost_bytes += len(chunk)
                    continue
                if (left := self._bytes_left) is not None:
                    self._bytes_left = None if left < len(chunk) else left - len(chunk)
                    chunk = chunk[:left]  # noqa: PLW2901 - the rest never arrives
                sink.sendall(chunk)
                if left is not None and self._bytes_left is None:
                    break
        if source in self._silent:  # its end is lost, too
            return
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _read(self, source: socket.socket, gate: threading.Event) -> Iterator[bytes]:
        """What is to be forwarded in this direction, until its end."""
        while chunk := source.recv(65_536):
            yield chunk
