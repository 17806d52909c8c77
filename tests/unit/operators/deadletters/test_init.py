"""Dead letters, found and counted. tests/integration/operators/test_deadletters.py tests what resolving does."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.errors.figures import Count
from outboxkit.operators.deadletters import DeadLetters, Refusal, Resolved, Selection
from tests.integration.operators.dead_rows import LONG_AGO, dead, fill, outbox_rows, waiting

SECOND = timedelta(seconds=1)


async def test_the_newest_come_first_and_the_rest_is_counted(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(place) for place in range(1, 6)])
    found = await DeadLetters(async_engine).find(Selection(), limit=2)
    assert [row.position for row in found.rows] == [5, 4]
    assert found.more == Count(3)


@pytest.mark.parametrize(
    ("selection", "places"),
    [
        (Selection(), {1, 2, 3}),
        (Selection(resolved=True), {1, 2, 3, 4}),
        (Selection(type="ParcelSent"), {2}),
        (Selection(key="a"), {1}),
        (Selection(reason="expired"), {3}),
        (Selection(side="inbox"), set()),
        (Selection(destination="payments"), {2}),
        (Selection(numbers=(1, 4)), {1}),
        (Selection(numbers=(1,), message_ids=("m-2", "nobody's")), {1, 2}),
        (Selection(before=LONG_AGO), {3}),
        (Selection(since=LONG_AGO), {1, 2}),
        (Selection(type="ParcelSent", key="a"), set()),
    ],
)
async def test_each_condition_holds(engine: Engine, async_engine: AsyncEngine, selection: Selection, places: set[int]):
    gone = {"resolution": None, "resolved_by": None}
    letters = [
        dead(1, key="a", **gone),
        dead(2, type="ParcelSent", destination="payments", **gone),
        dead(3, reason="expired", dead_at=LONG_AGO - SECOND, **gone),
        dead(4, resolution="replayed", resolved_by="somebody"),
    ]
    fill(engine, letters)
    found = await DeadLetters(async_engine).read(selection, limit=10)
    assert {row.position for row in found} == places


async def test_a_survey_tells_what_waits(engine: Engine, async_engine: AsyncEngine):
    letters = [dead(1, key="a"), dead(2, key="b"), dead(3, type="ParcelSent"), dead(None, side="inbox", parked=False)]
    fill(engine, letters, [waiting(10, "a"), waiting(11, "a"), waiting(12, "c"), waiting(13, "b", due_at=LONG_AGO)])
    survey = await DeadLetters(async_engine).survey(Selection())
    assert (survey.count, survey.replayable, survey.upto) == (4, 3, 4)
    assert survey.refusals == {Refusal.NO_QUEUE: 1}
    assert (survey.keys, survey.waiting) == (2, Count(2))
    assert survey.kinds[0] == (("outbox", "OrderConfirmed", "rejected"), 2, 2)
    assert {kind[:2]: replayable for kind, _, replayable in survey.kinds} == {
        ("outbox", "OrderConfirmed"): 2,
        ("outbox", "ParcelSent"): 1,
        ("inbox", "OrderConfirmed"): 0,
    }


async def test_a_window_bounds_what_is_read_and_leads_on_where_it_ended(engine: Engine, async_engine: AsyncEngine):
    times = {place: LONG_AGO + place * SECOND for place in range(1, 8)}
    fill(engine, [dead(place, dead_at=at, type="Old" if place < 4 else "New", key="a") for place, at in times.items()])
    letters, places, ends = DeadLetters(async_engine), list[int](), 0
    selection = Selection(reason="rejected", key="a")
    while True:
        page = await letters.find(selection, limit=10, window=3)
        places += [row.position for row in page.rows]
        if page.end is None:
            break
        selection, ends = replace(selection, after=page.end), ends + 1
    assert (places, ends) == ([7, 6, 5, 4, 3, 2, 1], 2)
    groups = await letters.group(Selection(side="outbox"), "type", limit=10, window=5)
    assert [(row.value, row.rows) for row in groups.rows] == [("New", 4), ("Old", 1)]
    assert groups.end is not None
    survey = await letters.survey(Selection(reason="rejected"), window=5)
    assert (survey.count, survey.upto) == (5, 7)
    assert survey.end is not None
    survey = await letters.survey(Selection(type="Old"), window=4)  # an index leads to them, so all are read
    assert (survey.count, survey.end) == (3, None)
    named = await letters.find(Selection(numbers=(1, 2, 3)), limit=10, window=1)
    assert len(named.rows) == 3


async def test_a_stop_ends_it_behind_a_page(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(place) for place in range(1, 6)])
    stop, done = asyncio.Event(), Resolved()

    async def sleep(_: float) -> None:
        stop.set()

    await DeadLetters(async_engine, rate=2.0, monotonic=lambda: 0.0, sleep=sleep).resolve(
        "replayed", Selection(), stop, done
    )
    assert (done.count, done.complete) == (2, False)
    assert outbox_rows(engine).keys() == {1, 2}
