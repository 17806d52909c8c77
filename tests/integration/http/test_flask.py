"""The Flask integration behind a real server: a body that is too long is not read."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.http.flask_shop import Shop, serving
from tests.support.polling import DEADLINE_SECONDS


@pytest.fixture
def running(database_url: str) -> Iterator[tuple[Shop, str]]:
    with serving(database_url) as found:
        yield found


@pytest.fixture
def shop(running: tuple[Shop, str]) -> Shop:
    return running[0]


@pytest.fixture
def client(running: tuple[Shop, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running[1], timeout=60, limits=httpx.Limits(max_connections=60)) as client:
        yield client


def at_once(number: int, call: Callable[[int], httpx.Response]) -> list[httpx.Response]:
    barrier = threading.Barrier(number)

    def one(index: int) -> httpx.Response:
        barrier.wait(DEADLINE_SECONDS)
        return call(index)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(one, range(number)))


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    return answer.status_code, document["type"].rpartition(":")[2]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("framing", "sent"),
    [
        ("Content-Length: 1073741824", b""),
        ("Transfer-Encoding: chunked", (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 17),
    ],
)
def test_a_body_beyond_the_limit_is_not_read(shop: Shop, client: httpx.Client, framing: str, sent: bytes):
    """The rest of it never comes, and the answer does."""
    lines = ["POST /orders HTTP/1.1", "Host: x", framing, "Idempotency-Key: k", "", ""]
    with socket.create_connection((client.base_url.host, client.base_url.port), 30) as raw:
        raw.sendall("\r\n".join(lines).encode() + sent)
        answer = raw.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nContent-Type: application/problem+json\r\n" in answer
    assert shop.calls == 0
