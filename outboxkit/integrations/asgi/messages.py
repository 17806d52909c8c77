"""The messages of ASGI, as much of them as is needed here; asgi.readthedocs.io, "HTTP & WebSocket"."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote

from outboxkit import problems
from outboxkit.idempotency import Response
from outboxkit.integrations import door
from outboxkit.problems import Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODILESS = frozenset((204, 304))


def lines(scope: Scope, name: str) -> list[str]:
    """Every line of a header, by its name in lower case."""
    return [value.decode("latin-1") for found, value in scope["headers"] if found.lower() == name.encode()]


def incoming(scope: Scope, body: bytes) -> door.Incoming:
    """What decides of a request; its path is the path that was sent, for nobody here knows the routes."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    return door.Incoming(
        method=scope["method"],
        template=path.decode("latin-1"),
        values={},
        query=parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True),
        keys=lines(scope, door.KEY.lower()),
        content_type=next(iter(lines(scope, "content-type")), None),
        body=body,
    )


async def read(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The body; None: the client left before its end.

    Raises:
        Problem: 413, it has more than `limit` bytes.
    """
    if door.is_longer(next(iter(lines(scope, "content-length")), None), limit):
        raise problems.body_too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise problems.body_too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read before, and then what the server has."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer(send: Send, response: Response) -> None:
    """Send a whole answer."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    if response.status not in _BODILESS and all(name != b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def refusal(problem: Problem) -> Response:
    """A problem document."""
    return Response(problem.status, (("content-type", problems.MEDIA_TYPE), *problem.headers), problem.body())
