"""Answers and results come back byte for byte."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.idempotency import Response
from outboxkit.idempotency.answer import answer_of, decode_steps, encode_steps, response_of

LATIN = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"))


@given(st.integers(100, 599), st.lists(st.tuples(LATIN, LATIN)), st.binary())
def test_an_answer_comes_back_as_it_was(status: int, headers: list[tuple[str, str]], body: bytes):
    response = Response(status, tuple(headers), body)
    kept = answer_of(response)
    assert isinstance(kept["headers"], bytes)
    row = SimpleNamespace(response_status=kept["status"], response_headers=kept["headers"], response_body=kept["body"])
    assert response_of(row) == response


@pytest.mark.parametrize(
    "header",
    [("A", "b\r\nSet-Cookie: c"), ("A", "b\nc"), ("A", "b\0"), ("A\r", "b"), ("A", "\u0431"), ("\ud800", "b")],
)
def test_an_answer_that_no_server_sends_is_not_kept(header: tuple[str, str]):
    with pytest.raises(ValueError, match="line break"):
        answer_of(Response(200, (header,)))


def test_pairs_may_be_lists():
    assert answer_of(Response(200, [["a", "b"]]))["headers"] == b'[["a","b"]]'


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from([b"1", b'{"a":null}', b"[]"])
    )
)
def test_results_come_back_as_they_were(steps: dict[str, bytes]):
    assert decode_steps(encode_steps(steps)) == steps


def test_where_there_is_none_there_are_no_results():
    assert decode_steps(None) == {}
