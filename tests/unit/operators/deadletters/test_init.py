"""Dead letters, found and counted. tests/integration/operators/test_deadletters.py tests what resolving does."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.errors.wording import Count
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
        dead(2, type="ParcelSent", **gone),
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
    assert (survey.keys, survey.waiting) == (2, 2)
    assert survey.kinds[0] == (("outbox", "OrderConfirmed", "rejected"), 2)
    assert {kind[:2]: survey.replayable_of(kind) for kind, _ in survey.kinds} == {
        ("outbox", "OrderConfirmed"): 2,
        ("outbox", "ParcelSent"): 1,
        ("inbox", "OrderConfirmed"): 0,
    }


async def test_a_stop_ends_it_behind_a_page(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(place) for place in range(1, 6)])
    stop, done = asyncio.Event(), Resolved()

    async def sleep(_: float) -> None:
        stop.set()

    await DeadLetters(async_engine, rate=2.0, monotonic=lambda: 0.0, sleep=sleep).replay(Selection(), stop, done)
    assert (done.count, done.complete) == (2, False)
    assert outbox_rows(engine).keys() == {1, 2}
