"""The demo's story and its tally."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers.memory import MemoryBroker
from outboxkit.cli.demo.story import RelayCrash, Story, Tally, TroubledPublisher
from tests.unit.shop import message

COUNTS = st.integers(0, 50)


@given(st.lists(st.integers(1, 8), max_size=20), st.sets(st.integers(1, 6), max_size=6))
def test_a_tally_tells_lost_doubled_and_invented_effects_apart(effects: list[int], orders: set[int]):
    tally = Tally(
        orders=len(orders),
        effects=len(effects),
        orders_with_effect=len(orders & set(effects)),
        invented=len([effect for effect in effects if effect not in orders]),
    )
    assert tally.lost == len(orders - set(effects))
    assert tally.doubled == sum(effects.count(order) - 1 for order in orders & set(effects))
    assert tally.is_right is (sorted(effects) == sorted(orders))


async def test_every_fifth_message_is_sent_twice_and_the_relay_crashes_once():
    broker, tally = MemoryBroker(), Tally()
    queue = broker.queue("demo", ["OrderConfirmed"])
    publisher = TroubledPublisher(broker, tally, crash_after=10)
    batch = [message(id=str(number)) for number in range(10)]
    with pytest.raises(RelayCrash):
        await publisher.publish(batch)
    assert (tally.published, tally.published_again, tally.crashes, len(queue.ready)) == (10, 10, 1, 12)
    assert len(await publisher.publish(batch)) == 10
    assert (tally.published, tally.crashes, len(queue.ready)) == (20, 1, 24)


def test_a_crash_of_the_relay_is_nothing_that_is_handled():
    assert not issubclass(RelayCrash, Exception)


@pytest.mark.parametrize("with_inbox", [True, False])
async def test_the_story(tmp_path: Path, with_inbox: bool):
    story = Story(f"sqlite:///{tmp_path}/shop.db", orders=30, with_inbox=with_inbox)
    await story.tell()
    tally = story.tally
    assert (tally.taken, tally.rolled_back, tally.orders, tally.crashes) == (30, 3, 27, 1)
    assert tally.published == tally.orders + tally.published_again
    assert tally.deliveries > tally.published
    assert (tally.lost, tally.invented) == (0, 0)
    assert tally.is_right is with_inbox
    assert tally.duplicates == (tally.deliveries - tally.orders if with_inbox else 0)
