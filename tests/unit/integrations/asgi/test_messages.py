"""ASGI messages."""

from typing import Any

import pytest

from outboxkit.idempotency import Response
from outboxkit.integrations.asgi.run import answer, incoming, problem_response, read_body, replayed
from outboxkit.problems import Problem, body_too_large


def scope(**more: Any) -> dict[str, Any]:
    return {"method": "POST", "path": "/a b", "headers": [], **more}


def source(*messages: dict[str, Any]) -> Any:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def test_the_path_is_the_one_that_was_sent():
    assert incoming(scope(raw_path=b"/a%2Fb"), b"").template == "/a%2Fb"
    assert incoming(scope(raw_path=None), b"").template == "/a%20b"


def test_every_line_of_the_key_counts_and_the_query_is_whole():
    headers = [(b"Idempotency-Key", b"a"), (b"idempotency-key", b"b"), (b"Content-Type", b"application/json")]
    found = incoming(scope(headers=headers, query_string=b"x=1&x=2&y="), b"{}")
    assert (found.keys, found.content_type) == (["a", "b"], "application/json")
    assert found.query == [("x", "1"), ("x", "2"), ("y", "")]


def test_queries_that_differ_in_bytes_of_no_text_are_two():
    first, second = (incoming(scope(query_string=query), b"").query for query in (b"a=%ff", b"a=%fe"))
    assert first != second
    assert first == incoming(scope(query_string=b"a=\xff"), b"").query, "however it is written"


async def test_a_body_comes_in_pieces_and_is_limited():
    pieces = [{"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.request", "body": b"c"}]
    assert await read_body(scope(), source(*pieces), 3) == b"abc"
    with pytest.raises(Problem):
        await read_body(scope(), source(*pieces), 2)
    with pytest.raises(Problem):
        await read_body(scope(headers=[(b"content-length", b"4")]), source(), 3)
    assert await read_body(scope(), source(pieces[0], {"type": "http.disconnect"}), 9) is None


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
    ],
)
async def test_an_answer_is_whole(response: Response, headers: Any):
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await answer(send, response)
    assert sent == [
        {"type": "http.response.start", "status": response.status, "headers": headers},
        {"type": "http.response.body", "body": response.body},
    ]


def test_a_refusal_is_a_problem_document():
    assert problem_response(body_too_large(5)).headers == (("content-type", "application/problem+json"),)
