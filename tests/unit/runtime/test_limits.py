"""Limits of a handler: how many run at once, and how many start in a period. The clock is the test's."""

import random

import pytest

from outboxkit import ConfigurationError, inbox_handler
from outboxkit.runtime.limits import BURST_SECONDS, FEW, FEW_BYTES, Limit, Rate


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", Rate(10, 1.0)),
        ("100/m", Rate(100, 60.0)),
        ("5/h", Rate(5, 3600.0)),
        ("1/30s", Rate(1, 30.0)),
        ("10000/24h", Rate(10_000, 86_400.0)),
        ("2/500ms", Rate(2, 0.5)),
    ],
)
def test_a_rate_is_a_number_and_a_period(text: str, rate: Rate):
    assert Rate.parse(text) == rate


@pytest.mark.parametrize(
    "rate", ["10", "0/s", "10001/s", "1/0s", "1/25h", "-1/s", "1/s ", "1.5/s", "a/s", "1/d", 10, ""]
)
def test_anything_else_is_refused_with_what_is_accepted(rate: str):
    with pytest.raises(ConfigurationError, match=r"@inbox_handler\('a'\): rate is .*\"10/s\", \"100/m\" or \"1/30s\""):
        inbox_handler("a", rate=rate)


@pytest.mark.parametrize("concurrency", [0, 1001, "2", True, 1.5])
def test_a_concurrency_is_a_number(concurrency: int):
    with pytest.raises(ConfigurationError, match=r"concurrency is .*from 1 to 1000 is accepted"):
        inbox_handler("a", concurrency=concurrency)


def test_a_batch_is_one_at_a_time_already():
    with pytest.raises(ConfigurationError, match="batch and concurrency exclude each other"):
        inbox_handler("a", batch=True, concurrency=2)


def starts(limit: Limit, clock: Clock, count: int, *, late: float = 0.0) -> list[float]:
    """The times at which so many messages start that wait all the time, with a timer that is late."""
    found: list[float] = []
    while len(found) < count:
        seconds = limit.opens_in()
        assert seconds is not None
        if seconds > 0:
            clock.now += seconds + random.uniform(0, late)
            continue
        limit.start()
        limit.end()
        found.append(clock.now)
    return found


def test_starts_are_spread_over_the_period(clock: Clock):
    found = starts(Limit(None, Rate(5, 10.0), clock=clock), clock, 11)
    assert [time - found[0] for time in found] == pytest.approx([2 * number for number in range(11)], abs=0.11)


@pytest.mark.parametrize("late", [0.0, 0.003, 0.05, 1.0])
@pytest.mark.parametrize("rate", ["10/s", "1000/s", "100/m", "3/500ms", "1/s"])
def test_no_period_has_more_starts_than_the_rate_has(clock: Clock, rate: str, late: float):
    parsed = Rate.parse(rate)
    limit = Limit(None, parsed, clock=clock)
    found = starts(limit, clock, 2 * parsed.count + 3, late=late)
    clock.now += 7 * parsed.seconds
    found += starts(limit, clock, 2 * parsed.count + 3, late=late)
    for first, beyond in zip(found, found[parsed.count :], strict=False):
        assert beyond - first >= parsed.seconds - 1e-6


def test_a_timer_that_is_late_costs_nothing(clock: Clock):
    found = starts(Limit(None, Rate(100, 1.0), clock=clock), clock, 501, late=0.02)
    assert found[-1] - found[0] == pytest.approx(5.0, abs=2 * BURST_SECONDS)


def test_as_many_run_at_once_as_the_concurrency_says(clock: Clock):
    limit = Limit(2, None, clock=clock)
    assert limit.opens_in() == 0
    limit.start()
    assert limit.opens_in() == 0
    limit.start()
    assert limit.opens_in() is None
    limit.end()
    assert limit.opens_in() == 0


def test_both_limits_count(clock: Clock):
    limit = Limit(1, Rate(1, 10.0), clock=clock)
    limit.start()
    assert limit.opens_in() is None
    limit.end()
    assert limit.opens_in() == pytest.approx(10.0)


def test_a_few_wait_in_memory_and_the_others_are_promised_their_turns(clock: Clock):
    limit = Limit(None, Rate(1, 1.0), clock=clock)
    for _ in range(FEW):
        assert limit.turn() is None
        limit.wait(1)
    assert [limit.turn() for _ in range(3)] == [FEW + 1, FEW + 2, FEW + 3]
    clock.now += 1
    assert limit.turn() == FEW + 3
    clock.now += 1000
    assert limit.turn() == FEW + 1, "old promises are over"
    limit.waits_no_more(1)
    assert limit.turn() is None


def test_few_large_messages_are_many(clock: Clock):
    limit = Limit(None, Rate(1, 1.0), clock=clock)
    limit.wait(FEW_BYTES)
    assert limit.turn() == 2
    limit.forget_waiting()
    assert limit.turn() is None


def test_turns_behind_a_concurrency_follow_from_how_long_its_messages_take(clock: Clock):
    limit = Limit(2, None, clock=clock)
    for _ in range(FEW):
        limit.wait(1)
    assert limit.turn() == 0, "nobody knows yet"
    for _ in range(3):
        limit.start()
        limit.start()
        clock.now += 4
        limit.end()
        limit.end()
        clock.now += 1000
    assert limit.turn() == pytest.approx(FEW * 2 + 2)


def test_another_argument_of_the_decorator_is_refused():
    with pytest.raises(TypeError, match=r"@inbox_handler\('a'\) got an unexpected keyword argument 'speed'"):
        inbox_handler("a", speed="fast")  # type: ignore[call-overload]
