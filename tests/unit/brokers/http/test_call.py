"""One request at a transport that behaves as it is told; what servers really do is in tests/integration."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from outboxkit.brokers.http.call import Call, reason_of
from outboxkit.brokers.http.order import Lost
from outboxkit.brokers.http.verdict import HttpResponse

CONNECTED, LEFT = "connection.connect_tcp.started", "http11.send_request_headers.started"


class Body(httpx.AsyncByteStream):
    def __init__(self, parts: Sequence[bytes | Exception]) -> None:
        self.parts = parts
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part

    async def aclose(self) -> None:
        self.closed = True


class Transport(httpx.AsyncBaseTransport):
    """Plays one script for each attempt: events to tell, then what comes of it."""

    def __init__(self, *scripts: tuple[Sequence[str], Callable[[], httpx.Response]]) -> None:
        self.scripts = list(scripts)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        events, outcome = self.scripts.pop(0)
        for event in events:
            await request.extensions["trace"](event, {})
        return outcome()


def fails(error: Exception) -> Callable[[], httpx.Response]:
    def outcome() -> httpx.Response:
        raise error

    return outcome


async def outcome_of(transport: Transport, *, limit: int = 10) -> Any:
    request = httpx.Request("POST", "http://api.example/", content=b"{}")
    return await Call(transport, request, seconds=5, limit=limit).outcome()


GONE = httpx.RemoteProtocolError("Server disconnected without sending a response.")


async def test_a_response_is_heard_to_its_end_and_closed():
    body = Body([b"01234", b"56789"])
    response = httpx.Response(200, headers={"X-A": "1"}, stream=body)
    assert await outcome_of(Transport(((LEFT,), lambda: response))) == HttpResponse(200, {"x-a": "1"}, b"0123456789")
    assert body.closed


async def test_what_is_over_the_limit_is_left():
    body = Body([b"12345", b"6789012", AssertionError("it is not read")])
    response = httpx.Response(200, stream=body)
    assert await outcome_of(Transport(((LEFT,), lambda: response))) == HttpResponse(200, {}, b"1234567890", is_cut=True)
    assert body.closed


@pytest.mark.parametrize("error", [GONE, httpx.ReadError("reset"), httpx.WriteError("broken pipe")])
async def test_an_old_connection_that_is_gone_is_tried_anew_once(error: Exception):
    response = httpx.Response(204, stream=Body([]))
    assert await outcome_of(Transport(((LEFT,), fails(error)), ((CONNECTED, LEFT), lambda: response))) == HttpResponse(
        204
    )
    assert isinstance(await outcome_of(Transport(((LEFT,), fails(error)), ((LEFT,), fails(error)))), Lost)


async def test_what_cannot_be_written_is_no_loss():
    with pytest.raises(httpx.LocalProtocolError):
        await outcome_of(Transport(((LEFT,), fails(httpx.LocalProtocolError("Illegal header value")))))


def test_the_reason_is_what_the_system_has_said():
    error, below = httpx.ConnectError("All attempts failed"), OSError("All attempts failed")
    below.__cause__ = ExceptionGroup("two attempts", [ConnectionRefusedError(111, "refused")])
    error.__context__ = below
    assert reason_of(error) == "[Errno 111] refused"
    assert reason_of(httpx.ReadError("")) == "ReadError"
    assert reason_of(httpx.ReadError("a\n b")) == "a b"
