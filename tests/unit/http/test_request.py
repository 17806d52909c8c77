"""A request with a key, before any framework and any ledger: its body, its scope and its rules."""

from datetime import timedelta
from typing import Any

import pytest

from outboxkit.errors import ConfigurationError
from outboxkit.http.answer import Response, problem_response, send_response
from outboxkit.http.problems import Problem, body_too_large
from outboxkit.http.request import Rules, fingerprint, read_body, replayed, request_key_of


def scope(path: str = "/a b", **more: Any) -> dict[str, Any]:
    headers = [(b"Idempotency-Key", b"k"), (b"Content-Type", b"application/json")]
    return {"method": "POST", "path": path, "headers": headers, "query_string": b"a=1", **more}


def source(*messages: dict[str, Any]) -> Any:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def test_the_ledger_is_asked_for_scope_key_and_fingerprint():
    asked = request_key_of(scope(), b"{}")
    assert (asked.scope, asked.key) == ("POST /a%20b", "k")
    whole = {"method": "POST", "path": "/a%20b", "query": "a=1", "content_type": "application/json", "body": b"{}"}
    assert asked.fingerprint == fingerprint(**whole)
    assert request_key_of(scope(raw_path=b"/a%2Fb"), b"").scope == "POST /a%2Fb", "the path is the one that was sent"
    assert request_key_of(scope(), b"{}", "/{id}") == asked._replace(scope="POST /{id}")


def test_queries_of_no_text_are_two():
    first, second = (request_key_of(scope(query_string=query), b"") for query in (b"a=\xff", b"a=\xfe"))
    assert first.fingerprint != second.fingerprint


def test_every_line_of_the_key_counts():
    with pytest.raises(Problem, match="more than once"):
        request_key_of(scope(headers=[(b"Idempotency-Key", b"a"), (b"idempotency-key", b"b")]), b"")


def test_a_long_scope_ends_in_a_digest():
    first, second = (request_key_of(scope(), b"", "/" + "x" * 300 + end).scope for end in "ab")
    assert len(first) == len(second) == 255
    assert first != second
    assert first.startswith("POST /xxx")
    assert request_key_of(scope(), b"", "/" + "x" * 249).scope == "POST /" + "x" * 249


@pytest.mark.parametrize(("path", "readable"), [("/t/a\0b", "/t/a?b"), ("/t/\ud800", "/t/?")])
def test_a_scope_that_no_database_keeps_ends_in_a_digest(path: str, readable: str):
    """A mounted application's path holds what the client wrote there, a NUL as well."""
    assert request_key_of(scope(), b"", readable).scope == f"POST {readable}"
    assert request_key_of(scope(), b"", path).scope.startswith(f"POST {readable}~")


async def test_a_body_comes_in_pieces_and_is_limited():
    bare = scope(headers=[])
    pieces = [{"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.request", "body": b"c"}]
    assert await read_body(bare, source(*pieces), 3) == b"abc"
    with pytest.raises(Problem):
        await read_body(bare, source(*pieces), 2)
    for length in (b"4", b"9" * 5000, b"0" * 5000 + b"4"):
        with pytest.raises(Problem):
            await read_body(scope(headers=[(b"content-length", length)]), source(), 3)
    for length in (b"", b"-5", b"1e9", b"\xb2", b"0001"):
        assert await read_body(scope(headers=[(b"content-length", length)]), source(pieces[1]), 3) == b"c"
    assert await read_body(bare, source(pieces[0], {"type": "http.disconnect"}), 9) is None


async def test_a_body_is_given_again_and_then_what_the_server_has():
    receive = replayed(b"abc", source({"type": "http.disconnect"}))
    assert (await receive())["body"] == b"abc"
    assert (await receive())["type"] == "http.disconnect"


@pytest.mark.parametrize(
    ("response", "headers"),
    [
        (Response(201, (("ETag", '"é"'),), b"abc"), [(b"etag", b'"\xe9"'), (b"content-length", b"3")]),
        (Response(204), []),
        (Response(200, (("content-length", "0"),)), [(b"content-length", b"0")]),
        (problem_response(body_too_large(5)), None),
    ],
)
async def test_an_answer_is_whole(response: Response, headers: Any):
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await send_response(send, response)
    start, body = sent
    assert (start["status"], body["body"]) == (response.status, response.body)
    assert headers is None or start["headers"] == headers
    assert headers is not None or (b"content-type", b"application/problem+json") in start["headers"]


@pytest.mark.parametrize(
    "options",
    [
        {"retention": 3600},
        {"retention": timedelta(0)},
        {"retention": None},
        {"max_body": 0},
        {"max_response": 0},
    ],
)
def test_rules_that_are_none(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match=f"^{next(iter(options))} is .* accepted"):
        Rules(**options)
