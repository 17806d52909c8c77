"""What a destination and the HTTP client may do to a publisher: echo secrets, raise anything, answer without end."""

import asyncio
import base64
import html
import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from structlog.testing import capture_logs

from tests.integration.broker.publishing import Make, made, publish, verdicts
from tests.support.http_destination import Call, Destination, Say, say

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NUMBERED = "/services/T00000000/B1/SECRET-TOKEN/%C3%A9?token=QUERY/SECRET&of=shop"


def echoes(call: Call) -> list[Say]:
    """How servers tell which path it was that they do not know, or who they think asks."""
    target, plain = call.target, unquote(call.target)
    texts = [
        f"Cannot POST {target}",
        f"<pre>Cannot POST {html.escape(plain).replace('/', '&#x2F;')}</pre>",
        json.dumps({"path": plain, "url": target}).replace("/", "\\/"),
        f"The current path, {plain[1:].partition('?')[0]}, didn't match any of these",
        f'no route {target[:40]}\n{{"level":"info","event":"forged"}}\r\x1b[2J\u2028',
        "A" * 1000 + target,
        "A" * 1000 + quote(quote(target)),
        json.dumps(dict(call.headers)),
    ]
    found = [say(404, text.encode()) for text in texts]
    found += [say(status, texts[0].encode()) for status in (500, 503, 401, 409)]
    found += [say(307, location=f"https://other.example{target}")]
    found += [Say(f"HTTP/1.1 404 Cannot POST {target}\r\ncontent-length: 0\r\n\r\n".encode())]
    found += [say(200, b"x", content_encoding=target)]
    broken = [f"HTTP/1.1 {target}\r\n\r\n", f"{target}\r\n\r\n", f"HTTP/1.1 200 OK\r\n{target}\r\n\r\n"]
    broken += [
        f"HTTP/1.1 200 OK\r\ncontent-length: {target}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\ntransfer-encoding: {target}\r\n\r\n",
    ]
    broken += [f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{target}\r\n"]
    broken += [f"{call.header('authorization')}\r\n\r\n"]
    return [*found, *(Say(each.encode(), hang_up=True) for each in broken)]


async def test_path_query_and_credentials_are_not_shown_in_whatever_form_they_are_echoed(
    make: Make, destination: Destination, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG", "httpx")  # httpcore's own traces have the headers of answers
    url = f"http://sk_live_USERNAME:p%2FSSWORD@localhost:{destination.port}{NUMBERED}"
    user = base64.b64encode(b"sk_live_USERNAME:p/SSWORD").decode().upper()
    hidden = ("SECRET", "T00000000", "QUERY", "USERNAME", "SSWORD", user, KEY.removeprefix("whsec_").upper())
    for at in range(len(echoes(Call("POST", "/", (), b"", 0)))):
        destination.answer = lambda call, at=at: echoes(call)[at]
        publisher = make(url=url, secret=KEY)
        with capture_logs() as log:
            (receipt,) = await publish(publisher, made())
        shown = f"{receipt!r} {publisher!r} {publisher._target!r} {caplog.text} {log}"
        found = [each for each in hidden if each in shown.upper()]
        assert not found, (at, shown)
        assert str(receipt.reason).isprintable(), "no line of a log can be forged"
        assert len(str(receipt.reason)) < 1200


async def test_whatever_the_client_library_raises_is_one_messages_trouble(make: Make, destination: Destination):
    broken: list[BaseException] = [
        *(RuntimeError("client SECRET-TOKEN"), ValueError(), KeyError("x"), RecursionError(), MemoryError()),
        *(UnicodeEncodeError("ascii", "é", 0, 1, "no"), httpx.InvalidURL("Invalid URL /hooks?of=SECRET-TOKEN")),
        *(asyncio.CancelledError("leaked"), ExceptionGroup("two", [OSError(), ValueError()]), Unspeakable()),
        BaseExceptionGroup("cancelled", [asyncio.CancelledError()]),
    ]
    publisher = make(url=destination.url.replace("shop", "SECRET-TOKEN"))
    await publisher.connect()
    transport = publisher._transport
    publisher._transport = Failing(transport, broken)  # type: ignore[assignment]
    receipts = await publish(publisher, *(made(str(number)) for number in range(20)))
    assert verdicts(receipts) == ["rejected"] * len(broken) + ["confirmed"] * (20 - len(broken))
    assert not any(receipt.final for receipt in receipts)
    assert "SECRET" not in repr(receipts)
    assert "the client failed: RuntimeError" in str(receipts[0].reason)
    publisher._transport = transport


class Failing(httpx.AsyncBaseTransport):
    """Raises one error for each of the first messages, at any point of their requests."""

    def __init__(self, inner: Any, errors: Sequence[BaseException]) -> None:
        self.inner, self.errors = inner, errors

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        at = int(request.headers["idempotency-key"].strip('"'))
        if at >= len(self.errors):
            return await self.inner.handle_async_request(request)
        if at % 2:
            return httpx.Response(200, stream=Broken(self.errors[at]))
        if at % 4:
            await request.extensions["trace"]("http11.send_request_headers.started", {})
        raise self.errors[at]


class Broken(httpx.AsyncByteStream):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"x"
        raise self.error

    async def aclose(self) -> None:
        raise self.error


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_endless_head_ends(make: Make, destination: Destination):
    for raw in (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000, b"HTTP/1.1 200 OK\r\na: " + b"b" * 500_000,
                b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20_000):  # fmt: skip
        destination.answer = lambda call, raw=raw: Say(raw) if call.key == "1" else say()
        receipts = await publish(make(timeout=timedelta(seconds=5)), made("1"), made("2"))
        assert verdicts(receipts) == ["rejected", "confirmed"]
