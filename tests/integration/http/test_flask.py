"""The Flask integration behind a real server: many clients at once, lost answers, refused requests."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import func, select

from outboxkit import tables
from tests.integration.http.flask_shop import Order, Shop, serving
from tests.support.polling import DEADLINE_SECONDS

KEY = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}
BODY = {"customer": "Ada"}


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


def effects(shop: Shop) -> tuple[int, int, int]:
    """Orders, messages and remembered requests that are committed."""
    found = (Order.__table__, tables.outbox, tables.idempotency)
    with shop.engine.connect() as connection:
        orders, messages, keys = (connection.scalar(select(func.count()).select_from(table)) for table in found)
    return orders or 0, messages or 0, keys or 0


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


def test_a_replay_is_the_answer_byte_for_byte(shop: Shop, client: httpx.Client):
    first, second = (client.post("/orders", json=BODY, headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code, first.content) == (201, 201, second.content)
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", first.headers["Idempotency-Expires"])
    for name in ("ETag", "Location", "X-Two", "Content-Type", "Idempotency-Expires"):
        assert first.headers.get_list(name) == second.headers.get_list(name) != []
    assert effects(shop) == (1, 1, 1)


@pytest.mark.parametrize("body", [{}, {"customer": ""}])
def test_a_mended_request_may_keep_its_key(shop: Shop, client: httpx.Client, body: dict[str, str]):
    assert client.post("/orders", json=body, headers=KEY).status_code == 422
    assert effects(shop) == (0, 0, 0)
    assert client.post("/orders", json=BODY, headers=KEY).status_code == 201
    assert effects(shop) == (1, 1, 1)


def test_fifty_at_once_that_fail_fail_alike(shop: Shop, client: httpx.Client):
    answers = at_once(50, lambda _: client.post("/orders/7/pay", headers=KEY))
    assert {answer.status_code for answer in answers} == {409}
    assert effects(shop) == (0, 0, 1)
    assert client.post("/orders/7/pay", headers=KEY).headers["Idempotency-Replayed"] == "true"


def test_the_path_is_part_of_the_request(shop: Shop, client: httpx.Client):
    assert client.post("/orders/7/pay", headers=KEY).status_code == 409
    assert problem(client.post("/orders/8/pay", headers=KEY)) == (422, "key-reused")
    assert problem(client.post("/orders/7/pay?x=1", headers=KEY)) == (422, "key-reused")
    assert client.post("/orders", json=BODY, headers=KEY).status_code == 201, "another operation, another scope"


def test_a_body_of_a_mebibyte(shop: Shop, client: httpx.Client):
    body = b'{"customer":"Ada","x":"' + b"x" * (1024 * 1024 - 25) + b'"}'
    assert len(body) == 1024 * 1024
    json_key = KEY | {"Content-Type": "application/json"}
    answers = [client.post("/orders", content=body, headers=json_key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert problem(client.post("/orders", content=body[:-3] + b'y"}', headers=json_key)) == (422, "key-reused")
    assert effects(shop) == (1, 1, 1)
    assert problem(client.post("/orders", content=body + b" ", headers=json_key)) == (413, "body-too-large")


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


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_duplicate_does_not_wait_for_the_first(shop: Shop, client: httpx.Client):
    """On SQLite it waits: there is one writer."""
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, "/held", headers=KEY)
        assert shop.entered.wait(DEADLINE_SECONDS)
        assert problem(client.post("/held", headers=KEY)) == (409, "in-progress")
        assert problem(client.post("/held?x=1", headers=KEY)) == (422, "key-reused")
        assert client.post("/orders", json=BODY, headers={"Idempotency-Key": "other"}).status_code == 201
        shop.go_on.set()
        assert first.result().status_code == 201
