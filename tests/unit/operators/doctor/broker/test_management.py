"""The management API's client, against servers that are slow, silent, large or not this API at all."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from outboxkit.errors import BrokerUnavailable
from outboxkit.operators.doctor.broker import management
from outboxkit.operators.doctor.broker.management import Management
from tests.support.polling import eventually_async

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def answering(*parts: bytes, timeout: float = 30) -> AsyncIterator[tuple[Management, list[bytes]]]:
    """A client of a server that sends these parts and then, if the last one is empty, nothing more."""
    requests: list[bytes] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        for part in parts:
            writer.write(part)
        await writer.drain()
        if not parts[-1]:
            await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    url = f"http://monitor:hunter2@{host}:{port}/prefix/"
    yield Management(url, ("other", "x"), timeout=timeout), requests
    ended.set()
    server.close()
    await server.wait_closed()


async def test_what_it_asks_for():
    async with answering(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}') as (api, requests):
        answer = await api.get("queues", "/", "a b")
        assert (answer.status, answer.content) == (200, {"a": 1})
        assert requests[0].startswith(b"GET /prefix/api/queues/%2F/a%20b HTTP/1.1\r\n")
        assert b"Authorization: Basic bW9uaXRvcjpodW50ZXIy\r\n" in requests[0]
        assert (api.user, "hunter2" in api.address) == ("monitor", False)


async def test_it_follows_no_redirect_with_its_password():
    async with answering(b"HTTP/1.1 301 Moved\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n") as (
        api,
        _,
    ):
        assert (await api.get("whoami")).status == 301


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", b""),
        (b"SSH-2.0-OpenSSH\r\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",),
    ],
    ids=["silent", "stuck", "another protocol", "cut off"],
)
async def test_servers_that_do_not_answer(parts: tuple[bytes, ...]):
    async with answering(*parts, timeout=0.2) as (api, _):
        with pytest.raises(
            BrokerUnavailable, match=r"management API at http://127.0.0.1:\d+ does not answer"
        ) as raised:
            await api.get("whoami")
        assert "hunter2" not in str(raised.value)


async def test_a_question_that_is_cancelled_leaves_nothing_behind():
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with answering(b"") as (api, requests):
        asking = asyncio.create_task(api.get("whoami"))
        await eventually_async(lambda: asyncio.sleep(0, requests))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await asyncio.get_running_loop().shutdown_default_executor()
    gc.collect()
    await asyncio.sleep(0)
    assert told == []


async def test_an_answer_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(management, "LARGEST", 10)
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n[1, 2, 3, 4") as (api, _):
        with pytest.raises(BrokerUnavailable, match="larger than 10 bytes"):
            await api.get("bindings")


async def test_an_answer_that_is_not_json_has_no_content():
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>") as (api, _):
        assert (await api.get("whoami")).content is None


@pytest.mark.parametrize(("verify", "checked"), [(True, (True, ssl.CERT_REQUIRED)), (False, (False, ssl.CERT_NONE))])
async def test_over_tls_the_server_is_verified_unless_the_broker_s_is_not(verify: bool, checked: tuple[bool, int]):
    api = Management("https://monitor@127.0.0.1:1/", ("other", "x"), timeout=30, verify=verify)
    with pytest.raises(BrokerUnavailable, match=r"https://127\.0\.0\.1:1 does not answer: .*refused"):
        await api.get("whoami")
    context = api._connection()._context  # type: ignore[attr-defined]
    assert (context.check_hostname, context.verify_mode) == checked
