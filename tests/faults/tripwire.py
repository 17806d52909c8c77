"""A proxy that reads PostgreSQL's protocol, AMQP or HTTP, and stops at one message: what was sent so far has arrived.

It knows the frames of these protocols, the texts of statements and the names of methods, and nothing of outboxkit.
"""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

METHODS = {
    (40, 20): "delete exchange",
    (40, 30): "bind exchange",
    (60, 40): "publish",
    (60, 60): "deliver",
    (60, 80): "ack",
}
"""The methods of AMQP 0-9-1 that a step may be, by class and method."""
SECRET_REQUESTS = (80_877_103, 80_877_104)
"""The codes of requests for TLS and GSSAPI, which come before the startup message."""

PATIENCE_SECONDS = 20


class Stop(StrEnum):
    """What the proxy does at the message for which it waits."""

    BEFORE = "before"
    """The message does not arrive, and nothing after it."""
    AFTER = "after"
    """The message arrives, and is acted upon; its answer does not arrive, and nothing after it."""
    SILENT = "silent"
    """As `BEFORE`, but the connection stays open, and whatever is sent is acknowledged."""


@dataclass
class Wire:
    """The bytes of one direction, cut into whole messages, each with the name of what it asks for."""

    statements: dict[bytes, str] = field(default_factory=dict)
    _rest: bytes = b""

    def read(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """The name and the bytes of each message that is whole now; the name is empty if it asks for nothing."""
        self._rest += chunk
        while (size := self._size(self._rest)) is not None and len(self._rest) >= size:
            message, self._rest = self._rest[:size], self._rest[size:]
            yield self._name(message), message

    def _size(self, rest: bytes) -> int | None:
        raise NotImplementedError

    def _name(self, message: bytes) -> str:
        raise NotImplementedError


@dataclass
class PostgresqlWire(Wire):
    """What a client sends to PostgreSQL: the text of a statement names its `Query`, or the `Bind` that runs it."""

    _has_started: bool = False

    def _size(self, rest: bytes) -> int | None:
        start = 1 if self._has_started else 0
        return None if len(rest) < start + 4 else start + int.from_bytes(rest[start : start + 4], "big")

    def _name(self, message: bytes) -> str:
        if not self._has_started:
            self._has_started = int.from_bytes(message[4:8], "big") not in SECRET_REQUESTS
            return ""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body.rstrip(b"\0").decode(errors="replace")
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.statements[name] = text.decode(errors="replace")
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return self.statements.get(name, "")
        return ""

    @staticmethod
    def ends(message: bytes) -> bool:
        """Whether the server acts on all that was sent up to this message."""
        return message[:1] in (b"S", b"Q")


@dataclass
class AmqpWire(Wire):
    """One direction of AMQP 0-9-1: a method frame is named by its method."""

    _has_started: bool = False

    def _size(self, rest: bytes) -> int | None:
        if not self._has_started and rest[:1] == b"A":
            return 8
        return None if len(rest) < 7 else 8 + int.from_bytes(rest[3:7], "big")

    def _name(self, message: bytes) -> str:
        self._has_started = True
        if message[:1] != b"\1":
            return ""
        ids = int.from_bytes(message[7:9], "big"), int.from_bytes(message[9:11], "big")
        return METHODS.get(ids, "")


@dataclass
class HttpWire(Wire):
    """One direction of HTTP/1.1 with `Content-Length`: requests are named by their method, responses `answer`."""

    def _size(self, rest: bytes) -> int | None:
        head, end, _ = rest.partition(b"\r\n\r\n")
        length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
        return len(head) + len(end) + (int(length[1]) if length else 0) if end else None

    def _name(self, message: bytes) -> str:
        return "answer" if message.startswith(b"HTTP/") else message.split(b" ", 1)[0].decode()


@dataclass(frozen=True)
class Step:
    """One kind of message on the way of something.

    Attributes:
        wire: `postgresql`, `amqp` or `http`.
        pattern: of the statement's text, or the method's name.
        sender: `client` or `server`.
        behind: the step comes on a connection after a message with this pattern, or is that message.
        number: it is the first one that is all this, or the second, and so on.
    """

    wire: str
    pattern: str
    sender: str = "client"
    behind: str = ""
    number: int = 1

    def is_it(self, name: str) -> bool:
        """Whether a message of this name is this step."""
        return re.search(self.pattern, name, re.IGNORECASE | re.DOTALL) is not None


WIRES: dict[str, Callable[[], Wire]] = {"postgresql": PostgresqlWire, "amqp": AmqpWire, "http": HttpWire}


class Tripwire:
    """Forwards connections to one server, until the step for which it waits comes along.

    Args:
        wire: the protocol.
        host, port: of the server.

    Attributes:
        tripped: set when the step has come along.
    """

    def __init__(self, wire: str, host: str, port: int) -> None:
        self._wire, self._target = wire, (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.tripped = threading.Event()
        self._step: Step | None = None
        self._behind, self._came = set[socket.socket](), 0
        self._stop, self._at = Stop.BEFORE, lambda: None
        self._silent = set[socket.socket]()
        self._over: dict[socket.socket, threading.Event] = {}
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, step: Step, stop: Stop, at: Callable[[], object] = lambda: None) -> None:
        """Stop at the next message that is this step, and call `at` there; once."""
        with self._lock:
            self.tripped.clear()
            self._step, self._stop, self._at = step, stop, at
            self._behind.clear()
            self._came = 0

    def cut(self) -> None:
        """End all connections."""
        for pair in self._pairs:
            _close(*pair)

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
                self._over |= {client: threading.Event(), server: threading.Event()}
                threading.Thread(target=self._forward, args=("client", client, server), daemon=True).start()
                threading.Thread(target=self._forward, args=("server", server, client), daemon=True).start()

    def _forward(self, sender: str, source: socket.socket, sink: socket.socket) -> None:
        wire = WIRES[self._wire]() if self._wire != "postgresql" or sender == "client" else None
        with contextlib.suppress(OSError):
            while chunk := source.recv(65_536):
                if source in self._silent:
                    continue
                for name, message in wire.read(chunk) if wire is not None else [("", chunk)]:
                    if not self._pass(wire, sender, name, message, source, sink):
                        break
        self._over[source].set()
        if source not in self._silent and sink not in self._silent:
            _close(source, sink)

    def _pass(
        self, wire: Wire | None, sender: str, name: str, message: bytes, source: socket.socket, sink: socket.socket
    ) -> bool:
        """Forward the message, or stop at it; whether the connection goes on."""
        if source in self._silent:
            return False
        stop = self._trip(sender, name, source)
        if stop is None:
            sink.sendall(message)
            return True
        if stop is Stop.AFTER:
            self._let_arrive(wire, message, source, sink)
        self._silent |= {source, sink}
        self._at()
        if stop is not Stop.SILENT:
            _close(source, sink)
        self.tripped.set()
        return False

    def _trip(self, sender: str, name: str, source: socket.socket) -> Stop | None:
        with self._lock:
            step = self._step
            if step is None or step.sender != sender or not name:
                return None
            if re.search(step.behind, name):
                self._behind.add(source)
            if source not in self._behind or not step.is_it(name):
                return None
            self._came += 1
            if self._came < step.number:
                return None
            self._step = None
            return self._stop

    def _let_arrive(self, wire: Wire | None, message: bytes, source: socket.socket, sink: socket.socket) -> None:
        """Send the message and what belongs to it, and wait until the peer has acted on it; its answer is dropped."""
        self._silent.add(sink)
        sink.sendall(message)
        if isinstance(wire, PostgresqlWire) and not wire.ends(message):
            for rest in _further(wire, source):
                sink.sendall(rest)
                if wire.ends(rest):
                    break
        sink.shutdown(socket.SHUT_WR)
        self._over[sink].wait(PATIENCE_SECONDS)  # it closes when it has read all


def _further(wire: Wire, source: socket.socket) -> Iterator[bytes]:
    """The next messages, from what was read and then from the connection."""
    chunk = b""
    while True:
        for _, message in wire.read(chunk):
            yield message
        if not (chunk := source.recv(65_536)):
            return


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
