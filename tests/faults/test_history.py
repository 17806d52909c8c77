"""The checker of histories, on a good one and on each kind of bad one."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.history import Committed, Dead, Fault, Handled, History, Published, Rules, Verdict, judge
from tests.faults.soak import Report, Run

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


def of_id(history: History, id_: str, **changes: object) -> History:
    """The history, with these changes in all rows of one message that handlers wrote."""
    return replace(history, handled=[replace(row, **changes) if row.id == id_ else row for row in history.handled])


def more(history: History, field: str, *rows: object) -> History:
    return replace(history, **{field: [*getattr(history, field), *rows]})


def waited(*times: tuple[float, float]) -> History:
    """Messages without a key, which were committed and handled at these times."""
    made = [Committed(f"id-w{n}", f"w{n}", at, step=-n, handlers=("h",)) for n, (at, _) in enumerate(times)]
    handled = [Handled(each.id, "h", at) for each, (_, at) in zip(made, times, strict=True)]
    return History(committed=made, published=[Published(each.id, each.subject) for each in made], handled=handled)


LATE = replace(of_id(good(), "id-2", at=17.5), faults=[Fault("killed", 4.0, 12.0), Fault("frozen", 3.0, 9.0)])
BAD: dict[str, tuple[str, History]] = {
    "unpublished": ("lost", replace(good(), published=[each for each in good().published if each.id != "id-2"])),
    "unhandled": ("lost", replace(good(), handled=[row for row in good().handled if row != Handled("id-2", "h", 3.0)])),
    "replayed and unhandled": (
        "lost",
        replace(good(), handled=[row for row in good().handled if row.id != "id-mended"]),
    ),
    "published of nothing": ("invented", more(good(), "published", Published("id-9", "rolled back"))),
    "handled of nothing": ("invented", more(good(), "handled", Handled("id-9", "h", 3.0))),
    "handled by a stranger": ("invented", more(good(), "handled", Handled("id-1", "other", 3.0))),
    "handled twice": ("doubled", more(good(), "handled", Handled("id-1", "h", 3.0))),
    "published late": ("inverted", replace(good(), published=[good().published[1], *good().published])),
    "handled late": ("inverted", of_id(good(), "id-0", at=3.5)),
    "published with another id": ("identity changed", more(good(), "published", Published("id-9", "step 1"))),
    "published as another": ("identity changed", more(good(), "published", Published("id-1", "step 7"))),
    "tried again": ("attempt burnt", of_id(good(), "id-0", attempts=2)),
    "dead": ("dead without cause", more(good(), "dead", Dead("id-0", "h", "failed", 3.0, "replayed"))),
    "dead of nothing": ("dead without cause", more(good(), "dead", Dead("id-9", "h", "bad", 3.0, "discarded"))),
    "stale": ("stale handled", of_id(good(), "id-mended", at=1061.0)),
    "left behind": ("parked for ever", more(good(), "left", "id-2")),
    "unresolved": ("parked for ever", more(good(), "dead", replace(good().dead[0], resolution=None))),
    "rested": ("gap", of_id(good(), "id-2", at=8.0)),
    "rested beyond a fault": ("gap", LATE),
    "rested before a fault": ("gap", replace(of_id(good(), "id-2", at=10.5), faults=[Fault("killed", 9.5, 99.0)])),
    "rested while an older one waited": ("gap", waited((9, 10), (0, 14))),
    "a session outlived its process": ("held after death", more(good(), "held", "the session 'outboxkit relay'")),
}
"""What is wrong in a history, and the verdict that names it."""
ALSO = {"published with another id": ("invented",)}
"""What else it is."""


REPLAYED = Dead("id-0", "o", "failed", 2.0, "replayed")
HARMLESS: dict[str, History] = {
    "good": good(),
    "nothing was to do": waited((0, 1), (100, 101)),
    "always busy": waited((0, 4), (0, 8), (0, 12)),
    "a replay is late": replace(
        more(of_id(good(), "id-0", at=4.5), "dead", REPLAYED),
        committed=[replace(each, fails=each.fails or each.id == "id-0") for each in good().committed],
    ),
}
"""Histories that break no promise. `waited` has no key, so its steps, which fall, are in no order."""


@pytest.mark.parametrize("what", HARMLESS)
def test_nothing_is_found_in_a_good_history(what: str):
    assert judge(HARMLESS[what], RULES) == []


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_in_a_history_is_named(what: str):
    verdict, history = BAD[what]
    found = judge(history, RULES)
    assert verdict in {each.name for each in found}
    assert {each.name for each in found} <= {verdict, *ALSO.get(what, ())}, found


def test_a_fault_explains_a_rest_of_its_own_length():
    history = of_id(good(), "id-2", at=15.0)
    assert [each.name for each in judge(history, RULES)] == ["gap"] * 2
    history.faults = [Fault("database killed", 3.0, 11.0)]
    assert judge(history, RULES) == []


@pytest.mark.parametrize("verdicts", [[], [Verdict("lost", "step 1")]])
def test_the_history_of_a_broken_promise_is_kept_beside_the_logs(verdicts: list[Verdict], tmp_path: Path):
    Report(Run(seed=7, seconds=30), 1.0, good(), (), Counter(), 1, 1, 1, verdicts).keep(tmp_path)
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("history.json")]
    assert [each["handled"][-1]["id"] for each in kept] == ["id-mended"] * len(verdicts)
