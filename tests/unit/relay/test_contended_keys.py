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


def test_all_keys_of_such_a_claim_are_left_alone():
    keys = {f"k{number}": 1 for number in range(1000)}
    assert set(blocked(Seconds(), *[(1000, keys)] * order.PATIENCE).keys()) == keys.keys()
