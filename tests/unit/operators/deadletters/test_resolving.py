"""How pages add up. tests/integration/operators/test_deadletters.py and test_sending_back.py test what a page does."""

from collections.abc import Iterable

from outboxkit.operators.deadletters import Refusal, Resolved
from outboxkit.operators.deadletters.resolving import NAMED


def page(numbers: Iterable[int]) -> Resolved:
    made = Resolved(2, 3)
    made.refuse(Refusal.TAKEN, list(numbers))
    made.refuse(Refusal.STALE, [])
    return made


def test_pages_are_added_up_and_only_the_first_refused_are_named():
    done = Resolved()
    for first in (1, 9):
        done.add(page(range(first, first + 8)))
    assert (done.count, done.released) == (4, 6)
    assert done.refused == {Refusal.TAKEN: 16}
    assert done.named == {Refusal.TAKEN: list(range(1, NAMED + 1))}


def test_each_reason_has_its_own_names():
    done = page([1])
    done.refuse(Refusal.STALE, [2])
    done.refuse(Refusal.STALE, [3])
    assert done.named == {Refusal.TAKEN: [1], Refusal.STALE: [2, 3]}
    assert done.refused.total() == 3
