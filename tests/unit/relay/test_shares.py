"""Which relays have a share of the keys, and which share this one has."""

from outboxkit.relay.shares import LAST_POSITION, STILL_LOOKS, STILL_SECONDS, WINDOW, Shares


class Seconds:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def of(seconds: Seconds, number: int = 5) -> Shares:
    made = Shares(seconds)
    made.number = number
    return made


def share(made: Shares) -> tuple[int, int]:
    return made.rank, made.count


def test_a_relay_alone_has_all_keys():
    made = of(Seconds())
    assert share(made) == (0, 1)
    made.saw([(None, None)])  # the lock was not seen yet
    assert share(made) == (0, 1)
    made.saw([(5, "3/1"), (5, "4/1")])
    assert share(made) == (0, 1)


def test_relays_are_ranked_by_their_numbers():
    seen = [(9, "3/1"), (5, "4/1"), (1, "5/1"), (1, "6/1")]
    for number, rank in ((1, 0), (5, 1), (9, 2)):
        made = of(Seconds(), number)
        made.saw(seen)
        assert share(made) == (rank, 3)


def test_a_relay_that_ended_or_froze_loses_its_share():
    seconds = Seconds()
    made = of(seconds)
    for turn in range(STILL_LOOKS):
        made.saw([(1, f"3/{turn}"), (7, "4/1"), (8, "5/1")])
    seconds.now += STILL_SECONDS / 2
    made.saw([(1, "3/x"), (7, "4/1")])
    assert share(made) == (1, 4)
    seconds.now += STILL_SECONDS / 2
    made.saw([(1, "3/x"), (7, "4/1")])
    assert share(made) == (1, 2)


def test_with_slow_batches_a_relay_keeps_its_share_for_some_looks():
    seconds = Seconds()
    made = of(seconds)
    made.saw([(7, "4/1")])
    for _ in range(STILL_LOOKS - 1):
        seconds.now += STILL_SECONDS
        made.saw([(7, "4/1")])
        assert share(made) == (0, 2)
    made.saw([(7, "4/1")])
    assert share(made) == (0, 1)


def test_a_relay_without_a_backlog_has_all_keys_again():
    made = of(Seconds())
    made.saw([(1, "3/1")])
    made.leave()
    assert share(made) == (0, 1)


def test_a_relay_looks_for_its_share_near_the_first_row_unless_that_one_stays():
    seconds = Seconds()
    made = of(seconds)
    assert made.last_position == LAST_POSITION
    made.saw_first(1000)
    assert made.last_position == 1000 + WINDOW
    seconds.now += STILL_SECONDS + 1
    for _ in range(STILL_LOOKS - 1):
        made.saw_first(1000)
    assert not made.stand_still
    made.saw_first(1000)
    assert made.stand_still
    assert made.last_position == LAST_POSITION
    made.saw_first(1001)
    assert not made.stand_still
    made.saw_first(None)
    seconds.now += STILL_SECONDS + 1
    assert (made.stand_still, made.last_position) == (False, LAST_POSITION)
