"""Dead letters of several destinations: each goes back to its own, and a key is parked in its own alone."""

from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Selection
from outboxkit.operators.deadletters.resolving import resolve_page
from tests.integration.operators.dead_rows import dead, fill, letters, outbox_rows, still_parked, waiting
from tests.integration.operators.test_deadletters import ALL, discard, replay


async def test_a_message_goes_back_to_its_destination_and_still_asks_for_its_reply(
    engine: Engine, async_engine: AsyncEngine
):
    fill(engine, [dead(10, key="a", destination="payments", reply="CardCharged"), dead(11)])
    assert (await replay(async_engine)).count == 2
    rows = outbox_rows(engine)
    assert [(rows[place].destination, rows[place].reply) for place in (10, 11)] == [
        ("payments", "CardCharged"),
        ("default", None),
    ]


@pytest.mark.parametrize("resolve", [replay, discard])
async def test_a_key_is_released_in_its_destination_alone(engine: Engine, async_engine: AsyncEngine, resolve: Any):
    """The same key is parked in two destinations: each waits for its own dead letter, wherever the other one stood."""
    fill(
        engine,
        [dead(10, key="a", destination="default"), dead(20, key="a", destination="payments")],
        [waiting(30, "a", destination="default"), waiting(31, "a", destination="payments")],
    )
    survey = await DeadLetters(async_engine).survey(Selection(numbers=(2,)))
    assert (survey.keys, survey.waiting.value) == (1, 1)
    assert (await resolve(async_engine, Selection(numbers=(2,)))).released == 1
    assert still_parked(engine) == {30}
    survey = await DeadLetters(async_engine).survey(ALL)
    assert (survey.keys, survey.waiting.value) == (1, 1)
    assert (await resolve(async_engine)).released == 1
    assert still_parked(engine) == set()


async def test_one_page_releases_keys_of_several_destinations(engine: Engine, async_engine: AsyncEngine):
    names = ("default", "mail", "payments")
    fill(
        engine,
        [dead(place, key="a", destination=name) for place, name in enumerate(names, 1)],
        [waiting(10 + place, "a", destination=name) for place, name in enumerate(names)],
    )
    assert (await DeadLetters(async_engine).survey(ALL)).keys == 3
    assert (await discard(async_engine)).released == 3


async def test_a_selection_of_a_destination(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(1), dead(2, destination="payments"), dead(None, side="inbox")])
    assert (await discard(async_engine, Selection(destination="payments"))).count == 1
    assert [row.resolution for row in letters(engine).values()] == [None, "discarded", None]


async def test_operators_at_one_key_of_two_destinations_do_not_wait_for_each_other(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, [dead(10, key="a", destination="default"), dead(11, key="a", destination="payments")])
    async with async_pg_engine.connect() as first, async_pg_engine.connect() as second:
        await resolve_page(first, "discarded", [1], "somebody", ReplayRules())
        await second.execute(text("SET lock_timeout = '5s'"))
        assert (await resolve_page(second, "discarded", [2], "somebody", ReplayRules())).count == 1
        await first.commit()
        await second.commit()
