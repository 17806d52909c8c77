"""A client that writes the bytes of its requests itself, on a real socket."""

import socket
from dataclasses import dataclass

from outboxkit.runtime.urls import ListenAddress

SECONDS = 60.0
"""The longest that a test waits for an answer; a port that does not answer fails it."""


@dataclass(frozen=True)
class Answered:
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def lines(self) -> list[str]:
        return self.body.decode().splitlines()


def connect(address: ListenAddress) -> socket.socket:
    return socket.create_connection(address, timeout=SECONDS)


def read(client: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = bytearray()
    while part := client.recv(64 * 1024):
        received += part
    return bytes(received)


def send(address: ListenAddress, request: bytes) -> bytes:
    """What comes back for these bytes until the connection ends."""
    with connect(address) as client:
        client.sendall(request)
        return read(client)


def parsed(answer: bytes) -> Answered:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    version, code, _ = status.split(" ", 2)
    assert version == "HTTP/1.1"
    return Answered(int(code), dict(line.split(": ", 1) for line in lines), body)


def get(address: ListenAddress, path: str, *, method: str = "GET") -> Answered:
    return parsed(send(address, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()))
