"""The numbers of a request's locks, and the verdict on who holds a key.

The locks themselves are in tests/integration/http/test_idempotency_locks.py.
"""

from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outboxkit.http.ledger import InProgress, Mismatch, _locks_of, _row_of, judge_locks

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
A, B = b"a" * 32, b"b" * 32
MINE, OTHER = 4_000_000_000, 7


def locks(*texts: str, fingerprint: bytes = A) -> dict[str, int]:
    return _locks_of(_row_of(*texts), fingerprint)


@given(st.tuples(TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS))
@example(("ab", "c", "d"), ("a", "bc", "d"))
@example(("a", "bc", "d"), ("a", "b", "cd"))
def test_two_keys_share_a_lock_only_where_they_are_one(one: tuple[str, str, str], other: tuple[str, str, str]):
    assert (locks(*one)["request_lock"] == locks(*other)["request_lock"]) is (one == other)


def test_the_numbers_are_the_same_in_every_process_and_version():
    expected = {"request_lock": 7450568881105693822, "request_part": 1958204208, "asked_part": 0x61616161}
    assert locks("POST /orders", "alice", "k-1") == expected


def test_what_is_asked_changes_its_half_alone():
    one, other = locks("s", "p", "k"), locks("s", "p", "k", fingerprint=B)
    assert {name for name in one if one[name] != other[name]} == {"asked_part"}


class Row(NamedTuple):
    holder: str
    subid: int
    part: int


HOLDER = Row("3/7", 1, 12345)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], None),
        ([Row("4/1", 2, MINE), Row("5/1", 2, OTHER)], None),
        ([HOLDER, Row("3/7", 2, MINE)], InProgress()),
        ([HOLDER, Row("3/7", 2, OTHER)], Mismatch()),
        ([HOLDER, Row("3/7", 2, OTHER), Row("4/1", 2, MINE)], Mismatch()),
        ([HOLDER, Row("3/7", 2, MINE), Row("4/1", 2, OTHER)], InProgress()),
        ([HOLDER, Row("3/7", 2, OTHER), Row("3/7", 2, MINE)], InProgress()),
        ([HOLDER], InProgress()),
        ([HOLDER, Row("4/1", 2, OTHER)], InProgress()),
    ],
)
def test_what_counts_is_what_the_holder_itself_has_told(rows: list[Row], verdict: object):
    assert judge_locks(rows, MINE) == verdict
