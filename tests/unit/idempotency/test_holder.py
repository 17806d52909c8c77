"""The verdict on who holds a key; the locks themselves are in tests/integration/test_idempotency_locks.py."""

from typing import NamedTuple

import pytest

from outboxkit.idempotency import InProgress, Mismatch
from outboxkit.idempotency.contention import judge_locks

MINE, OTHER = 4_000_000_000, 7


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
