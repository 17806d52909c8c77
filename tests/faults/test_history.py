"""The checker of histories, on a good one and on each kind of bad one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.history import Committed, Dead, Fault, Handled, History, Published, Rules, judge

RULES = Rules(window=1000, patience=5)


def good() -> History:
    """Three steps of a key, a failure that is replayed, and one that is discarded."""
    steps = [
        Committed(f"id-{n}", f"step {n}", float(n), key="a", step=n, handlers=("h", "o"), ordered=("o",))
        for n in range(3)
    ]
    poison = [Committed(f"id-{name}", name, 3.0, handlers=("h",), fails=True) for name in ("mended", "dropped")]
    return History(
        committed=[*steps, *poison],
        published=[Published(each.id, each.subject) for each in (*steps, steps[0], *poison)],
        handled=[
            *(Handled(each.id, handler, each.at + 1) for each in steps for handler in each.handlers),
            Handled("id-mended", "h", 60.0, attempts=3),
        ],
        dead=[
            Dead("id-mended", "h", "failed", 5.0, "replayed"),
            Dead("id-dropped", "h", "failed", 5.0, "discarded"),
        ],
    )


def unpublished(history: History) -> None:
    history.published = [copy for copy in history.published if copy.id != "id-2"]


def unhandled(history: History) -> None:
    history.handled.remove(Handled("id-2", "h", 3.0))


def published_of_nothing(history: History) -> None:
    history.published.append(Published("id-9", "rolled back"))


def handled_of_nothing(history: History) -> None:
    history.handled.append(Handled("id-9", "h", 3.0))


def handled_by_a_stranger(history: History) -> None:
    history.handled.append(Handled("id-1", "other", 3.0))


def handled_twice(history: History) -> None:
    history.handled.append(Handled("id-1", "h", 3.0))


def published_late(history: History) -> None:
    history.published.insert(0, history.published[1])


def handled_late(history: History) -> None:
    history.handled = [replace(row, at=3.5) if row == Handled("id-0", "o", 1.0) else row for row in history.handled]


def published_with_another_id(history: History) -> None:
    history.committed.append(Committed("id-9", "again", 0.0))
    history.published.append(Published("id-9", "step 1"))


def tried_again(history: History) -> None:
    history.handled = [replace(row, attempts=2) if row.id == "id-0" else row for row in history.handled]


def dead(history: History) -> None:
    history.dead.append(Dead("id-0", "h", "failed", 3.0, "replayed"))


def dead_of_nothing(history: History) -> None:
    history.dead.append(Dead("id-9", "h", "undecodable", 3.0, "discarded"))


def stale(history: History) -> None:
    history.handled = [replace(row, at=1061.0) if row.id == "id-mended" else row for row in history.handled]


def left_behind(history: History) -> None:
    history.left.append("id-2")


def unresolved(history: History) -> None:
    history.dead[0] = replace(history.dead[0], resolution=None)


def rested(history: History) -> None:
    history.handled = [replace(row, at=row.at + 5) if row.id == "id-2" else row for row in history.handled]


def rested_beyond_a_fault(history: History) -> None:
    history.faults = [Fault("database killed", 4.0, 12.0), Fault("worker frozen", 3.0, 9.0)]
    history.handled = [replace(row, at=17.5) if row.id == "id-2" else row for row in history.handled]


def test_nothing_is_found_in_a_good_history():
    assert judge(good(), RULES) == []


@pytest.mark.parametrize(
    ("break_", "verdict"),
    [
        (unpublished, "lost"),
        (unhandled, "lost"),
        (published_of_nothing, "invented"),
        (handled_of_nothing, "invented"),
        (handled_by_a_stranger, "invented"),
        (handled_twice, "doubled"),
        (published_late, "inverted"),
        (handled_late, "inverted"),
        (published_with_another_id, "identity changed"),
        (tried_again, "attempt burnt"),
        (dead, "dead without cause"),
        (dead_of_nothing, "dead without cause"),
        (stale, "stale handled"),
        (left_behind, "parked for ever"),
        (unresolved, "parked for ever"),
        (rested, "gap"),
        (rested_beyond_a_fault, "gap"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_wrong_in_a_history_is_named(break_: Callable[[History], None], verdict: str):
    history = good()
    break_(history)
    found = judge(history, RULES)
    assert verdict in {each.name for each in found}
    assert {each.name for each in found} <= {verdict, "lost"}, found


def test_a_fault_explains_a_rest_of_its_own_length():
    history = good()
    history.handled = [replace(row, at=15.0) if row.id == "id-2" else row for row in history.handled]
    assert [each.name for each in judge(history, RULES)] == ["gap"] * 2
    history.faults = [Fault("database killed", 3.0, 11.0)]
    assert judge(history, RULES) == []
