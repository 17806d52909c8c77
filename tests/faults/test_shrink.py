"""What is left of a plan that fails."""

import pytest

from tests.faults.faults import ALL
from tests.faults.shrink import shrunk
from tests.faults.soak import Run

ENTRIES = tuple(range(1, 41))


@pytest.mark.parametrize("culprits", [{7}, {3, 38}, {1, 2, 40}, {19, 20, 21, 22}])
def test_only_those_are_left_that_break_something_together(culprits: set[int]):
    tried = list[tuple[int, ...]]()

    def breaks(entries: tuple[int, ...]) -> bool:
        tried.append(entries)
        return culprits <= set(entries)

    assert set(shrunk(ENTRIES, breaks, tries=200)) == culprits
    assert len(tried) < 100
    assert all(entries == tuple(sorted(entries)) for entries in tried)


def test_so_many_tries_are_made_and_what_they_left_still_breaks():
    tried = list[tuple[int, ...]]()

    def breaks(entries: tuple[int, ...]) -> bool:
        tried.append(entries)
        return {3, 38} <= set(entries)

    left = shrunk(ENTRIES, breaks, tries=5)
    assert len(tried) == 5
    assert {3, 38} <= set(left) < set(ENTRIES)


def test_a_run_as_a_text_is_its_command():
    assert str(Run(seed=7, seconds=120)) == "make soak MINUTES=2 SEED=7"
    some = Run(seed=7, seconds=30, names=tuple(ALL)[:2], longest=1, pooler=True, chosen=(3, 8))
    options = "--pooler --longest 1 --only 'worker killed,worker frozen' --faults 3,8"
    assert str(some) == f'make soak MINUTES=0.5 SEED=7 ARGS="{options}"'
    all_ = Run(seed=7, seconds=60, nodes=3, standby=True, clocks=True, notes=40)
    assert str(all_) == 'make soak MINUTES=1 SEED=7 ARGS="--nodes 3 --standby --clocks --notes 40"'
