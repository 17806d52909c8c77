"""Which keys a relay leaves alone for a while."""

from collections import Counter

from outboxkit.relay import order
from outboxkit.relay.order import ContendedKeys


class Seconds:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def blocked(seconds: Seconds, *claims: tuple[int, dict[str, int]]) -> ContendedKeys:
    made = ContendedKeys(seconds)
    for rows, keys in claims:
        made.saw(rows, Counter(keys))
    return made


def test_a_key_that_fills_claim_after_claim_is_left_alone_for_a_while():
    seconds = Seconds()
    made = blocked(seconds, *[(10, {"a": 8})] * order.PATIENCE)
    assert made.keys() == ["a"]
    seconds.now += order.AVOID_SECONDS
    assert made.keys() == []


def test_to_meet_another_relay_once_is_no_reason():
    assert blocked(Seconds(), *[(10, {"a": 8})] * (order.PATIENCE - 1)).keys() == []


def test_a_claim_of_which_half_may_go_is_good_enough():
    assert blocked(Seconds(), *[(10, {"a": 8})] * 2, (10, {"a": 5}), *[(10, {"a": 8})] * 2).keys() == []
    assert blocked(Seconds(), *[(10, {"a": 5})] * 9).keys() == []


def test_only_the_keys_that_fill_most_are_left_alone():
    keys = {f"k{number}": number for number in range(1, 100)}
    found = blocked(Seconds(), *[(4950, keys)] * order.PATIENCE).keys()
    assert sorted(found) == sorted(f"k{number}" for number in range(100 - order.AVOIDED_KEYS, 100))


def test_a_claim_is_given_back_to_another_relay_for_as_long_as_that_one_makes_progress():
    seconds = Seconds()
    made = ContendedKeys(seconds)
    for first in (10, 20, 30):
        made.saw(10, Counter({"a": 8}), first)
        assert made.yields
        seconds.now += order.YIELD_SECONDS / 2
    made.saw(10, Counter({"a": 8}), 30)
    assert made.yields
    seconds.now += order.YIELD_SECONDS
    for first in (30, 5):  # the other relay stands still, whatever else of it is seen
        made.saw(10, Counter({"a": 8}), first)
        assert not made.yields


def test_a_claim_of_which_half_may_go_is_not_given_back():
    made = ContendedKeys(Seconds())
    made.saw(10, Counter({"a": 5}), 10)
    assert not made.yields
