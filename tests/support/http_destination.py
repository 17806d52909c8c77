"""A real HTTP server for tests, in their own event loop: it notes every request, and answers as it is told to.

Whatever a server may do on its connection it can be told: `Say` is written byte by byte as it is given.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True)
class Call:
    """One request as it came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        """The value of a header that came once; None where it did not come."""
        found = [value for each, value in self.headers if each.lower() == name]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None

    @property
    def key(self) -> str | None:
        """The idempotency key without its quotes."""
        value = self.header("idempotency-key")
        return None if value is None else value[1:-1].replace('\\"', '"').replace("\\\\", "\\")


@dataclass(frozen=True)
class Say:
    """Bytes for the connection, the body at once or one in so many seconds, and whether it ends then."""

    raw: bytes = b""
    hang_up: bool = False
    drip: float = 0


DROP = Say(hang_up=True)
Answering = Callable[[Call], Say | Awaitable[Say]]


def say(status: int = 200, body: bytes = b"", *, hang_up: bool = False, **headers: str) -> Say:
    """A well-formed response; `retry_after="3"` is its header `retry-after: 3`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()} | {"content-length": str(len(body))}
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in named.items())]
    return Say("\r\n".join(lines).encode() + b"\r\n\r\n" + body, hang_up)


def ok(_: Call) -> Say:
    """200, and an empty body."""
    return say()


@dataclass
class Destination:
    """The server. Everything about it may be changed while it runs.

    Attributes:
        answer: what it says to a request.
        tls: for `https`.
        calls: every request that came whole.
        connections: how many were accepted.
        open_now, most_at_once: requests that are being answered.
    """

    answer: Answering = ok
    tls: ssl.SSLContext | None = None
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}/hooks?of=shop"

    @property
    def keys(self) -> list[str | None]:
        return [call.key for call in self.calls]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def listen(self) -> None:
        """Accept connections, at the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    def go_down(self) -> None:
        """Nobody listens any more; what is open stays."""
        if self._server is not None:
            self._server.close()

    async def refuse(self) -> None:
        """Nobody listens any more, and what was open has ended."""
        self.go_down()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.ensure_future(self._converse(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            while True:
                call = await _read(reader, number)
                self.calls.append(call)
                self.open_now += 1
                self.most_at_once = max(self.most_at_once, self.open_now)
                try:
                    said = self.answer(call)
                    said = said if isinstance(said, Say) else await said
                finally:
                    self.open_now -= 1
                for part in _parts(said):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(said.drip)
                if said.hang_up:
                    break
        self._writers.discard(writer)
        writer.close()


def _parts(said: Say) -> list[bytes]:
    if not said.drip:
        return [said.raw]
    head, end, body = said.raw.partition(b"\r\n\r\n")
    return [head + end, *(body[at : at + 1] for at in range(len(body)))]


async def _read(reader: asyncio.StreamReader, connection: int) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in head[1:] if line))
    size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Call(method, target, headers, await reader.readexactly(size), connection)
