"""Calls that fail on real sockets under `skip`: after the work, before it, and without a word about either."""

import asyncio
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from outboxkit import effects

DEAD = "http://nobody.invalid/"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """SQLite: what is asked here is the client's error."""
    return sqlite_url


class Server:
    """A server that does the work of each connection, and then gives this answer or none and ends, or never answers.

    It ends with a FIN. To close with a part of the request unread would send a RST, which may overtake the answer.
    """

    def __init__(self, answer: bytes | None) -> None:
        self.done = 0
        self._answer, self._open = answer, list[socket.socket]()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                client.recv(65536)
                self.done += 1
                self._open.append(client)
                if self._answer is not None:
                    client.sendall(self._answer)
                    client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self._thread.join()
        for client in self._open:
            client.close()


@pytest.fixture
def serve() -> Iterator[Callable[[bytes | None], Server]]:
    made: list[Server] = []

    def start(answer: bytes | None) -> Server:
        made.append(Server(answer))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def refusing() -> str:
    """A port on which nobody listens, on both addresses of localhost."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    return f"http://localhost:{port}/"


def post(server: Server) -> None:
    httpx.post(server.url, timeout=0.2)


def read_all(server: Server) -> None:
    urllib.request.urlopen(server.url, data=b"7").read()


def over_tls(server: Server) -> None:
    context = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        context.wrap_socket(wire, server_hostname="localhost")


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
"""To a port on which nobody listens."""
CLOSES, SILENT = b"", None


@pytest.mark.parametrize(
    ("answer", "call", "error"),
    [
        (CLOSES, post, httpx.RemoteProtocolError),
        (SILENT, post, httpx.ReadTimeout),
        (CUT, read_all, http.client.IncompleteRead),
        (b"no TLS", over_tls, ssl.SSLError),
        (MOVED, read_all, urllib.error.URLError),
    ],
    ids=["closes", "silent", "cut", "no TLS", "moved"],  # plain ones: mutmut names tests by them
)
def test_a_call_that_was_made_is_not_made_again(
    engine: Engine, serve: Callable[[bytes | None], Server], answer: bytes | None, call: Any, error: type[Exception]
):
    server, sessions = serve(answer), sessionmaker(engine)
    with pytest.raises(error):
        effects.once(sessions, "receipt-7", lambda: call(server), on_unknown="skip")
    assert effects.once(sessions, "receipt-7", lambda: call(server), on_unknown="skip").outcome == "skipped"
    assert server.done == 1


def once_with_urllib(url: str) -> None:
    """A call of one request, which says what the client's error stands for."""
    try:
        urllib.request.urlopen(url, data=b"7")
    except urllib.error.URLError as error:
        if isinstance(error.reason, effects.CERTAIN):
            raise error.reason from error
        raise


def post_async(url: str) -> None:
    """By another transport than `httpx.post`."""

    async def post() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(url)

    asyncio.run(post())


@pytest.mark.parametrize("call", [httpx.post, post_async, once_with_urllib])
def test_a_call_that_reached_nobody_is_made_again(engine: Engine, refusing: str, call: Any):
    sessions = sessionmaker(engine)
    for url in (refusing, DEAD):
        with pytest.raises((httpx.ConnectError, OSError)):
            effects.once(sessions, "receipt-7", lambda url=url: call(url), on_unknown="skip")
    assert effects.once(sessions, "receipt-7", lambda: 7, on_unknown="skip").outcome == "made"
