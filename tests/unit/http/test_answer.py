"""What is remembered of an answer, how it comes back, and what a request that is not new is told."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.errors import ConfigurationError
from outboxkit.http import answer
from outboxkit.http.answer import Replay, Response, columns_of, remembered_part, response_of

EXPIRES = datetime(2026, 3, 2, 14, 30, 5, 999_999, tzinfo=timezone(timedelta(hours=2)))
LATIN = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"))


@given(st.integers(100, 599), st.lists(st.tuples(LATIN, LATIN)), st.binary())
def test_an_answer_comes_back_as_it_was(status: int, headers: list[tuple[str, str]], body: bytes):
    response = Response(status, tuple(headers), body)
    kept = columns_of(response)
    assert isinstance(kept["headers"], bytes)
    row = SimpleNamespace(response_status=kept["status"], response_headers=kept["headers"], response_body=kept["body"])
    assert response_of(row) == response


@pytest.mark.parametrize(
    "header",
    [("A", "b\r\nSet-Cookie: c"), ("A", "b\nc"), ("A", "b\0"), ("A\r", "b"), ("A", "\u0431"), ("\ud800", "b")],
)
def test_an_answer_that_no_server_sends_is_not_kept(header: tuple[str, str]):
    with pytest.raises(ValueError, match="line break"):
        columns_of(Response(200, (header,)))


def test_pairs_may_be_lists():
    assert columns_of(Response(200, [["a", "b"]]))["headers"] == b'[["a","b"]]'


def test_a_replay_says_that_it_is_one():
    stored = Response(201, (("Location", "/7"), ("X", "1"), ("X", "2")), b"\x00\xff")
    repeated = answer.answered(Replay(stored, EXPIRES))
    marks = (("Idempotency-Replayed", "true"), ("Idempotency-Expires", "Mon, 02 Mar 2026 12:30:05 GMT"))
    assert repeated == Response(201, (*stored.headers, *marks), b"\x00\xff")


def test_what_is_kept_of_an_answer():
    gone = [
        *("Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer"),
        *("Transfer-Encoding", "Upgrade", "Set-Cookie", "set-cookie", "Content-Length", "Date", "Server"),
        *("Idempotency-Expires", "idempotency-replayed", "IDEMPOTENCY-KEY"),
    ]
    kept = [("Content-Type", "text/plain"), ("X", "1"), ("x", "2"), ("ETag", '"3"'), ("Cookie-Set", "a")]
    found = remembered_part(201, [*((name, "close") for name in gone), *kept], b"body", 4)
    assert found == Response(201, tuple(kept), b"body")


def test_what_connection_names_is_not_kept():
    hops = [("connection", "close, X-Hop ,ETag"), ("x-hop", "1"), ("etag", '"3"'), ("Connection", "y"), ("Y", "2")]
    assert remembered_part(200, [*hops, ("X", "1")], b"", 0).headers == (("X", "1"),)


def test_an_answer_is_at_most_as_large_as_allowed():
    assert remembered_part(200, [], b"12345", 5).body == b"12345"
    with pytest.raises(ConfigurationError, match="the response has 6 bytes, and max_response allows 5"):
        remembered_part(200, [], b"123456", 5)


def test_which_statuses_are_remembered():
    """Decision 29 says why, status by status."""
    unstored = {400, 401, 403, 406, 408, 412, 413, 415, 422, 425, 428, 429}
    forgotten = {status for status in range(100, 600) if not answer.is_stored(status)}
    assert forgotten == {*range(100, 200), *unstored, *range(500, 600)}
