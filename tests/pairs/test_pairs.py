"""Every two features meet in one of these scenarios, on PostgreSQL and RabbitMQ, and each message has one effect."""

import random
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.pairs.features import FEATURES, IMPOSSIBLE, Scenario, name_of, page, pairs_of, possible, scenarios
from tests.pairs.world import MESSAGES, World, order_of
from tests.support.night import SEED
from tests.support.plain_client import PlainClient

CHOSEN = [pytest.param(each, id=name_of(each)) for each in scenarios()]
BY_NIGHT = [
    pytest.param(each, id=f"by night: {name_of(each)}", marks=pytest.mark.night)
    for each in random.Random(SEED).sample(possible(), 40)
]


@pytest.mark.parametrize("scenario", [*CHOSEN, *BY_NIGHT])
async def test_each_message_has_one_effect(
    scenario: Scenario, postgresql_url: str, pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    world = World(scenario, postgresql_url, broker, pg_engine, async_pg_engine)
    await world.play()
    assert sorted(world.effects()) == list(range(MESSAGES))
    assert len(world.ids()) == MESSAGES
    assert world.left() == (0, 0)
    is_called = scenario["calls"] != "nobody"
    assert world.calls == dict.fromkeys(range(MESSAGES * is_called), 1)
    is_first_enough = scenario["first attempt"] == "succeeds"
    assert all((called == 1) == is_first_enough for called in world.attempts.values())
    if scenario["handler"] in ("ordered", "shards") and scenario["first attempt"] != "rejected":
        assert order_of(world.effects()) == order_of(list(range(MESSAGES)))


def test_every_pair_meets_or_cannot():
    met = set().union(*map(pairs_of, scenarios()))
    every = [(kind, way) for kind, ways in FEATURES.items() for way in ways]
    for one in every:
        for other in every:
            if one[0] < other[0]:
                assert (frozenset({one, other}) in met) != (frozenset({one, other}) in IMPOSSIBLE), (one, other)


def test_the_page_has_these_scenarios():
    assert Path("docs/explanation/pairs.md").read_text() == page(), "write it again: python -m tests.pairs"
