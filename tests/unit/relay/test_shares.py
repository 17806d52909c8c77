"""Which keys a relay claims, by what it sees of the others."""

from collections import Counter

from outboxkit.relay.shares import ContendedKeys, Shares
from tests.unit.relay.conftest import Seconds


def test_relays_that_stand_still_leave_their_shares_for_good(seconds: Seconds):
    """Their transactions stay open, and are no new ones, however often they are seen."""
    shares = Shares(seconds, 2)
    shares.number = 9
    works = []
    for look in range(40):
        shares.saw([(1, "2/7"), (2, "3/9"), *([] if shares.stands_by else [(9, f"4/{look}")])])
        works.append(not shares.stands_by)
        seconds.now += 0.5
    assert works == [False] * 4 + [True] * 36


def test_a_relay_that_goes_on_has_its_share_again(seconds: Seconds):
    shares = Shares(seconds, 2)
    shares.number = 9
    for number in (*([1] * 8), *range(2, 6)):
        shares.saw([(1, f"1/{number}"), (2, f"2/{number}")])
        seconds.now += 0.5
    assert shares.stands_by


def test_a_relay_that_leaves_its_share_does_not_stand_by(seconds: Seconds):
    shares = Shares(seconds, 2)
    shares.number = 9
    shares.saw([(1, "1/1")])
    assert (shares.count, shares.rank) == (2, 1)
    shares.leave()
    assert (shares.count, shares.rank, shares.stands_by) == (1, 0, False)


def test_keys_that_stay_blocked_add_up_although_each_claim_meets_one(seconds: Seconds):
    """A relay that froze holds them all, and each claim meets only some: the free message behind all of them waits."""
    contended = ContendedKeys(seconds)
    sizes = []
    for _ in range(20):
        left_out = contended.keys()
        met = next(({each} for each in "abcd" if each not in left_out), set())
        sizes.append(len(left_out))
        contended.saw(10, Counter(dict.fromkeys(met, 10)))
        seconds.now += 0.4
    assert max(sizes) == 4


def test_many_keys_that_stay_blocked_add_up_too(seconds: Seconds):
    """Several relays that froze hold 16 000 keys, of which a claim a second meets 2000."""
    contended = ContendedKeys(seconds)
    held, is_free = [f"k{n}" for n in range(16_000)], False
    for _ in range(20):
        left_out = set(contended.keys())
        met = [key for key in held if key not in left_out][:2000]
        is_free = is_free or not met
        contended.saw(2000, Counter(met))
        seconds.now += 1.0
    assert is_free


def test_keys_are_left_out_for_a_moment_if_others_are_free_then(seconds: Seconds):
    contended = ContendedKeys(seconds)
    for _ in range(3):
        contended.saw(10, Counter(a=6))
    assert contended.keys() == ["a"]
    contended.saw(10, Counter())
    seconds.now += 0.3
    assert contended.keys() == []
