"""Requests that a trial records, of each client library."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import httpx
import pytest

from outboxkit.testing.sending import patched


class Sent:
    """What was recorded, in order; no mail, thread or peer is."""

    def __init__(self) -> None:
        self.requests: list[dict[str, object]] = []

    @contextmanager
    def record(self, kind: str, request: Any) -> Iterator[None]:
        assert kind == "requests sent"
        self.requests.append(request)
        yield

    def patched(self, **answers: Any) -> Any:
        return patched(self.record, lambda _: False, lambda _: None, lambda _: None, answers)


def test_a_body_that_is_a_stream_is_left_alone():
    sent, read = Sent(), []

    def parts() -> Iterator[bytes]:
        read.append("read")
        yield b"a large file"

    with sent.patched(httpx=lambda request: httpx.Response(201)), httpx.Client() as client:
        answer = client.post("https://files.example/1", content=parts(), headers={"Idempotency-Key": "k-1"})
    assert answer.status_code == 201
    assert sent.requests == [{"method": "POST", "url": "https://files.example/1", "key": "k-1", "body": None}]
    assert read == []


@pytest.mark.parametrize("given", [{"json": {"id": 1}}, {"data": b"{'id': 1}"}])
async def test_a_request_of_aiohttp_is_recorded_and_sent(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]):
    """Its client calls this method for every verb. The tests do without the library, which outboxkit does not need."""

    class ClientSession:
        async def _request(self, method: str, url: str, **options: Any) -> object:
            return (method, url, options)

    library: Any = ModuleType("aiohttp")
    library.ClientSession = ClientSession
    monkeypatch.setitem(sys.modules, "aiohttp", library)
    original, sent = ClientSession._request, Sent()
    headers = {"Idempotency-Key": "k-1"}
    with sent.patched():
        answer = await ClientSession()._request("post", "https://pay.example/", headers=headers, **given)
    assert answer == ("post", "https://pay.example/", {"headers": headers, **given})
    assert sent.requests == [{"method": "POST", "url": "https://pay.example/", "key": "k-1", "body": "{'id': 1}"}]
    assert ClientSession._request is original
