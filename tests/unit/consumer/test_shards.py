"""Which process consumes which shard: pure."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from outboxkit.consumer.membership import Agreement
from outboxkit.runtime.sources import Shards

FOUR = Shards("steps", 4)
MEMBERS = ("a", "b", "c", "d", "e", "f")


def shared(
    count: int,
    *,
    shards: int = 4,
    draining: Mapping[str, tuple[str, ...] | None] = MappingProxyType({}),
    ours: Shards = FOUR,
) -> list[tuple[str, ...]]:
    members = tuple((member, ours.count) for member in MEMBERS[:count])
    agreement = Agreement(shards, members, draining)
    return [agreement.queues_of(member, "steps") for member, _ in members]


@pytest.mark.parametrize("count", range(1, 7))
def test_each_shard_and_the_queue_itself_has_one_process_and_none_has_two_more_than_another(count: int):
    parts = shared(count)
    assert sorted(queue for part in parts for queue in part) == [
        "steps",
        "steps.4.0",
        "steps.4.1",
        "steps.4.2",
        "steps.4.3",
    ]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_nothing_but_old_shards_is_consumed_until_they_are_empty():
    assert shared(2, draining={"steps": None}) == [("steps",), ()]
    assert shared(2, ours=Shards("steps", 1), shards=1, draining=dict.fromkeys(FOUR.names)) == [
        ("steps.4.0", "steps.4.2"),
        ("steps.4.1", "steps.4.3"),
    ]


def test_one_shard_is_the_queue_itself():
    assert shared(2, ours=Shards("steps", 1), shards=1) == [("steps",), ()]


def test_a_process_for_another_number_of_shards_consumes_nothing_and_waits_for_the_others():
    agreement = Agreement(1, (("a", 1), ("b", 4), ("c", 4)))
    assert agreement.queues_of("a", "steps") == ("steps",)
    assert agreement.queues_of("b", "steps") == ()
    assert (agreement.in_the_way_of(4), agreement.in_the_way_of(1)) == (1, 0)
    assert Agreement(1, (("b", 4),)).in_the_way_of(4) == 0


def test_old_shards_are_emptied_by_whoever_is_there():
    agreement = Agreement(4, (("a", 2), ("b", 2)), draining={"steps": None}, move=7)
    assert [agreement.queues_of(member, "steps") for member in "ab"] == [("steps",), ()]


def test_shards_are_consumed_beside_old_ones_once_their_last_keys_are_known_and_these_wait():
    assert shared(2, draining={"steps": ("k7",)}) == [("steps", "steps.4.0", "steps.4.2"), ("steps.4.1", "steps.4.3")]
    agreement = Agreement(1, (("a", 1),), {"steps.2.0": ("k7", "k8"), "steps.2.1": ("k9",)})
    assert agreement.held("steps") == {"k7", "k8", "k9"}
    assert agreement.held("steps.2.0") == frozenset(), "they are its own"


def test_old_shards_alone_are_consumed_until_the_markers_are_sent():
    assert shared(2, draining={"steps": ()}) != [("steps",), ()]
    members = (("a", 4), ("b", 4))
    assert Agreement(4, members, {"steps": None}, moved_from=1).queues_of("a", "steps") == ("steps",)


def test_a_change_is_over_for_an_old_shard_that_is_empty_and_for_others_once_it_is_settled():
    members = (("a", 3),)
    agreement = Agreement(3, members, {"steps.2.0": ("k7",)}, move=2)
    queues = ("steps.2.0", "steps.2.1", "steps.3.0", "steps")
    assert [agreement.is_over("steps", queue) for queue in queues] == [False, True, False, False]
    assert not Agreement(3, members, moved_from=2, move=2).is_over("steps", "steps.2.1"), "its marker is to come"
    assert all(Agreement(3, members, move=2).is_over("steps", queue) for queue in queues)


def test_nothing_is_consumed_while_the_bindings_change():
    assert Agreement(4, (("a", 4),), moved_from=1).queues_of("a", "steps") == ()


def test_a_process_that_others_count_as_gone_consumes_nothing():
    assert Agreement(4, (("a", 4),)).queues_of("b", "steps") == ()
