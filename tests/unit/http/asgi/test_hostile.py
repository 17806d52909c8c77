"""Whatever a client sends, it gets one answer that is not the server's fault, and the next client is served."""

from collections.abc import Iterator
from typing import Any

from outboxkit.http.asgi import IdempotencyMiddleware
from tests.support.grammar import Grammar
from tests.support.night import by_night, chance
from tests.unit.http.asgi.conftest import Served, caller, respond

KEYS = (
    b'"k"',
    b"k",
    b'"',
    b"\xff",
    b"a, b",
    b"k" * 255,
    b"k" * 256,
    b'"' + b"\\" * 255 + b'"',
    b'"a";b="',
    b'"\xc3\xa9"',
)
NUMBERS = (b"2", b"9" * 400, b"-1", b"+1", b"1000", b"1001", b"", b"\xd9\xa1")
METHODS = ("POST", "POST", "POST", "PUT", "PATCH", "DELETE", "GET", "BREW")


def request(grammar: Grammar) -> dict[str, Any]:
    """The scope of a request, with headers that a server may let through."""
    chance = grammar.chance
    headers = [
        chance.choice(
            (
                (b"idempotency-key", chance.choice(KEYS)),
                (b"content-length", chance.choice(NUMBERS)),
                (b"content-type", grammar.raw()),
                (b"x-a", grammar.raw()),
            )
        )
        for _ in range(chance.randrange(4))
    ]
    if grammar.one_in(2):
        headers.append((b"idempotency-key", b'"%d"' % chance.randrange(9)))
    path = chance.choice(("/orders", "/orders", "/orders", "/" + grammar.text(), "/\ud800", "/" + "x" * 3000))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": chance.choice(METHODS),
        "scheme": "http",
        "path": path,
        "raw_path": chance.choice((b"/orders", b"/orders", b"/" + grammar.raw(), None)),
        "query_string": grammar.raw(40),
        "headers": headers,
    }


async def application(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads the body to its end, if the client sends it."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await respond(send, 201, b"made")


async def test_any_request_is_answered_and_the_next_one_too(served: Served):
    grammar = Grammar(chance("requests"))
    door = IdempotencyMiddleware(application, served.sessions, principal=caller, max_body=1000)
    found: set[int] = set()
    for number in range(by_night(3_000, else_=150)):
        sizes = (10, 999, 1000, 1001, 50_000)
        bodies = iter([grammar.body()[: grammar.chance.choice(sizes)] for _ in range(grammar.chance.randrange(3))])
        sent: list[Any] = []

        async def receive(bodies: Iterator[bytes] = bodies) -> dict[str, Any]:
            body = next(bodies, None)
            if body is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": grammar.one_in(2)}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = request(grammar)
        await door(scope, receive, send)
        statuses = [each["status"] for each in sent if each["type"] == "http.response.start"]
        assert len(statuses) <= 1
        assert all(status < 500 for status in statuses), (number, scope, sent)
        found.update(statuses)
    assert found >= {201, 400, 413, 422}
    assert (await served.post(key="next")).status_code == 201
