"""Order by key: which claimed rows may go, and which must wait for whom."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.relay.order import Batch, ClaimedRow, Predecessors
from outboxkit.tables import PARKED
from tests.unit.relay.conftest import SECOND, Bench
from tests.unit.shop import NOW, message

PAST, FUTURE = NOW - SECOND, NOW + 60 * SECOND
MOMENTS = st.sampled_from([NOW - 2 * SECOND, PAST, NOW, FUTURE, PARKED])
KEYS = st.sampled_from([None, "a", "b"])
NO_CONNECTION: Any = None
PLACES = st.none() | st.integers(0, 12)


def row(position: int, key: str | None = "k", due_at: datetime | None = None, **more: datetime) -> ClaimedRow:
    return ClaimedRow(position, 0, message(id=f"m-{position}", key=key), due_at=due_at, **more)


@st.composite
def claims(draw: st.DrawFn) -> list[ClaimedRow]:
    positions = draw(st.lists(st.integers(1, 12), unique=True, max_size=8).map(sorted))
    dues, ends = st.none() | MOMENTS, st.sampled_from([None, PAST, FUTURE])
    return [row(position, draw(KEYS), draw(dues), expires_at=draw(ends)) for position in positions]


@st.composite
def befores(draw: st.DrawFn) -> dict[str, Predecessors]:
    found = {}
    for key in draw(st.sets(st.sampled_from(["a", "b"]))):
        held_at = draw(PLACES)
        due_at = draw(MOMENTS) if held_at is not None else None
        found[key] = Predecessors(draw(PLACES), held_at, due_at, draw(PLACES))
    return found


def stands_behind(row: ClaimedRow, found: Predecessors | None) -> bool:
    places = (found.ready_at, found.held_at, found.parked_at) if found is not None else ()
    return any(place is not None and place < row.position for place in places)


def planned(rows: list[ClaimedRow], before: dict[str, Predecessors]) -> Batch:
    batch = Batch(NO_CONNECTION, rows)
    batch.plan(before, now=NOW)
    return batch


def told(plan: Batch) -> Counter[int]:
    """How often each position is in a list."""
    waiting = [position for positions in plan.waiting.values() for position in positions]
    return Counter([*waiting, *plan.parked, *(row.position for row in [*plan.send, *plan.expired])])


@given(claims(), befores())
def test_a_row_goes_exactly_where_nothing_of_its_key_stands_before_it(
    rows: list[ClaimedRow], before: dict[str, Predecessors]
):
    plan = planned(rows, before)
    free = [row for row in rows if not stands_behind(row, before.get(row.message.key or ""))]
    assert plan.send == [row for row in free if row.expires_at != PAST]
    assert plan.expired == [row for row in free if row.expires_at == PAST]


@given(claims(), befores())
def test_every_row_is_in_one_list_or_given_back(rows: list[ClaimedRow], before: dict[str, Predecessors]):
    plan = planned(rows, before)
    found = told(plan)
    assert set(found.values()) <= {1}
    assert len(found) + plan.blocked_rows.total() == len(rows)


@given(claims(), befores())
def test_only_rows_behind_a_parked_key_are_parked_and_nobody_waits_for_ever(
    rows: list[ClaimedRow], before: dict[str, Predecessors]
):
    plan = planned(rows, before)
    assert PARKED not in plan.waiting
    for claimed in rows:
        found = before.get(claimed.message.key or "")
        waits = [due for due, positions in plan.waiting.items() if claimed.position in positions]
        if found is None or found.parked_at is None or found.parked_at >= claimed.position:
            assert claimed.position not in plan.parked or (found is not None and found.due_at == PARKED)
        if waits:
            assert waits == [found.due_at]
            assert claimed.due_at is None or claimed.due_at < found.due_at, "it would come back before the first"


@pytest.mark.parametrize(
    ("found", "due_at", "what"),
    [
        (Predecessors(), None, "send"),
        (Predecessors(ready_at=6, held_at=6, due_at=FUTURE, parked_at=6), None, "send"),
        (Predecessors(ready_at=4), None, "back"),
        (Predecessors(held_at=4, due_at=FUTURE), None, "wait"),
        (Predecessors(held_at=4, due_at=PAST), None, "wait"),
        (Predecessors(held_at=4, due_at=PAST), PAST - SECOND, "wait"),
        (Predecessors(held_at=4, due_at=PAST), PAST, "back"),
        (Predecessors(held_at=4, due_at=PARKED), None, "park"),
        (Predecessors(parked_at=4), None, "park"),
        (Predecessors(ready_at=4, held_at=4, due_at=FUTURE, parked_at=4), None, "park"),
        (Predecessors(ready_at=4, held_at=6, due_at=FUTURE), None, "back"),
    ],
)
def test_what_stands_before_a_row_says_what_it_waits_for(found: Predecessors, due_at: datetime | None, what: str):
    plan = planned([row(5, due_at=due_at)], {"k": found})
    wanted = {
        "send": ([5], {}, [], 0),
        "wait": ([], {found.due_at: [5]}, [], 0),
        "park": ([], {}, [5], 0),
        "back": ([], {}, [], 1),
    }
    assert ([row.position for row in plan.send], plan.waiting, plan.parked, plan.blocked_rows.total()) == wanted[what]


STUCK = st.dictionaries(st.sampled_from(["a", "b"]), st.none() | MOMENTS)


@given(claims(), STUCK)
def test_what_stands_behind_a_stuck_key_is_taken_out_and_the_rest_stays_in_order(
    rows: list[ClaimedRow], stuck: dict[str, datetime | None]
):
    plan = planned(rows, {})
    sent = list(plan.send)
    plan.drop_behind(stuck, now=NOW)
    assert plan.send == [row for row in sent if row.message.key not in stuck]
    found = told(plan)
    assert set(found.values()) <= {1}
    assert len(found) + plan.blocked_rows.total() == len(rows)
    for due, positions in plan.waiting.items():
        assert NOW < due < PARKED
        assert {stuck[row.message.key] for row in sent if row.position in positions} == {due}
    assert {stuck[row.message.key] for row in sent if row.position in plan.parked} <= {PARKED}


async def test_followers_that_are_due_before_their_first_do_not_stand_in_its_way_for_ever(bench: Bench):
    """So it is after an outage: the first was put off again, and not all of the others could be told in time."""
    bench.add("first", key="k", columns={"held": True, "due_at": PAST})
    bench.add(*"bcdefgh", key="k", columns={"held": True, "due_at": PAST - timedelta(seconds=1)})
    await bench.drain(batch_size=3)
    assert bench.arrived() == ["first", *"bcdefgh"]


async def test_a_delayed_message_that_is_due_waits_for_a_ready_one_behind_the_cut_of_its_batch(bench: Bench):
    bench.add(*"abc")
    bench.add("ready", key="k")
    bench.add("delayed", key="k", deliver_at=PAST)
    await bench.drain(batch_size=3)
    assert bench.arrived() == [*"abc", "ready", "delayed"]
