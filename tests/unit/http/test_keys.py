"""The header Idempotency-Key: one key in each of its forms, and a plain refusal of everything else."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outboxkit.http.problems import Problem
from outboxkit.http.request import parse_key

VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
KEYS = st.text(VISIBLE, min_size=1, max_size=255)
BARE = st.text(VISIBLE.replace('"', "").replace(",", ""), min_size=1, max_size=255)
PARAMETERS = st.sampled_from(["", "; a=1", ";a=-1.5", ";*=tok/en:x", ";a=:aGk=:", ';a=%"f%c3%bc"', ";a;b=2"])
BLANKS = st.sampled_from(["", " ", "\t", " \t  "])


def quoted(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def refused(*fields: str) -> Problem:
    with pytest.raises(Problem) as raised:
        parse_key(fields)
    return raised.value


@given(KEYS, PARAMETERS, BLANKS, BLANKS)
def test_a_quoted_key_is_the_text_in_the_quotes(key: str, parameters: str, before: str, after: str):
    assert parse_key([f"{before}{quoted(key)}{parameters}{after}"]) == key


@given(BARE, BLANKS)
def test_a_bare_key_is_the_same_key(key: str, blanks: str):
    assert parse_key([f"{blanks}{key}{blanks}"]) == key == parse_key([quoted(key)])


@given(st.lists(st.text(max_size=300) | st.text('"\\; =a,', max_size=20), max_size=3))
@example(['"' + "a" * 70_000])
@example(['"a"' + ";a" * 20_000 + "!"])
@example(['"a";a=' + '"' * 20_000])
def test_anything_else_is_a_problem_400_and_nothing_else(fields: list[str]):
    try:
        key = parse_key(fields)
    except Problem as refusal:
        found = (refusal.status, refusal.slug)
    else:
        found = (len(key) in range(1, 256), set(key) <= set(VISIBLE))
    assert found in ((True, True), (400, "key-invalid" if fields else "key-missing"))


@pytest.mark.parametrize(
    "field",
    [
        " ",
        '""',
        '"a',
        'a"b',
        '"a"b',
        '"a", "b"',
        "a,b",
        "a b",
        '"a b"',
        "ä",
        '"ä"',
        "a\x7f",
        '"a\\b"',
        '"a";a="x,y"',
        '"a" ;a',
        "x" * 256,
        quoted("x" * 256),
    ],
)
def test_what_is_no_key(field: str):
    problem = refused(field)
    assert (problem.status, problem.slug) == (400, "key-invalid")


def test_the_longest_key():
    assert parse_key(["x" * 255]) == "x" * 255
    assert parse_key([quoted('"' * 255)]) == '"' * 255


def test_no_line_and_too_many():
    assert refused().slug == "key-missing"
    assert "more than once" in refused("a", "a").detail


def test_a_bare_key_may_look_like_one_with_parameters():
    assert parse_key(["a;b=1"]) == "a;b=1"
