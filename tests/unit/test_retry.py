"""Delays: how they grow, and which of the retry delays a message waits for."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import ConfigurationError
from outboxkit.retry import Backoff, Retries, delay_for

DELAYS = st.timedeltas(timedelta(0), timedelta(days=30))
SHARES = st.floats(0, 1, exclude_max=True)
ASCENDING = st.sets(st.timedeltas(timedelta(milliseconds=1), timedelta(days=7)), min_size=1, max_size=6).map(
    lambda steps: tuple(sorted(steps))
)
SECOND = timedelta(seconds=1)


@given(st.integers(-5, 10**6), DELAYS, DELAYS, DELAYS, SHARES)
def test_a_delay_is_never_below_the_floor_and_never_above_the_cap(
    failures: int, base: timedelta, cap: timedelta, floor: timedelta, share: float
):
    delay = Backoff(base, cap, floor, jitter=lambda: share).after(failures)
    assert floor <= delay <= max(cap, floor)


@given(st.integers(1, 200), SHARES)
def test_more_failures_never_make_it_shorter(failures: int, share: float):
    backoff = Backoff(jitter=lambda: share)
    assert backoff.after(failures) <= backoff.after(failures + 1)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (10, 512), (11, 600)])
def test_the_ceiling_doubles_with_each_failure_up_to_the_cap(failures: int, seconds: int):
    assert Backoff(cap=timedelta(minutes=10), jitter=lambda: 1.0).after(failures) == timedelta(seconds=seconds)


@pytest.mark.parametrize("failures", [47, 48, 63, 64, 1_000, 10**9])
def test_it_goes_on_after_any_number_of_failures(failures: int):
    assert Backoff(cap=timedelta(minutes=10), jitter=lambda: 1.0).after(failures) == timedelta(minutes=10)


def test_the_jitter_takes_a_share_of_the_ceiling():
    assert Backoff(jitter=lambda: 0.5).after(3) == 2 * SECOND
    assert Backoff(jitter=lambda: 0.0).after(3) == timedelta(milliseconds=100)


def test_two_messages_do_not_wait_in_step():
    backoff = Backoff()
    assert len({backoff.after(8) for _ in range(50)}) > 1


def test_a_backoff_of_nothing_is_the_floor():
    assert Backoff(base=timedelta(0), minimum=timedelta(0)).after(9) == timedelta(0)


@given(ASCENDING, st.integers(-5, 1000))
def test_a_message_takes_the_next_delay_with_each_failure_and_then_the_last(
    delays: tuple[timedelta, ...], failures: int
):
    assert delay_for(delays, failures) == delays[min(max(failures - 1, 0), len(delays) - 1)]


@given(ASCENDING, st.integers(1, 20), st.timedeltas(timedelta(days=-1), timedelta(days=400)))
def test_what_was_asked_for_is_the_nearest_delay(delays: tuple[timedelta, ...], failures: int, wanted: timedelta):
    found = delay_for(delays, failures, wanted)
    assert found in delays
    assert all(abs(found - wanted) <= abs(step - wanted) for step in delays)


@pytest.mark.parametrize(("seconds", "nearest"), [(4, 1), (6, 10), (11, 10), (40, 60)])
def test_what_was_asked_for_is_rounded_down_as_well_as_up(seconds: int, nearest: int):
    assert delay_for((SECOND, 10 * SECOND, 60 * SECOND), 1, seconds * SECOND) == nearest * SECOND


def test_what_was_asked_for_may_be_no_delay_at_all():
    assert delay_for((SECOND, 2 * SECOND), 2, timedelta(0)) == SECOND


def test_a_rule_without_delays_leaves_it_to_the_consumer():
    assert Retries().delay(1) is None
    assert Retries(max_attempts=3).max_attempts == 3


@given(st.lists(DELAYS, min_size=1, max_size=5), st.integers(-5, 1000))
def test_the_last_delay_holds_for_all_further_failures(delays: list[timedelta], failures: int):
    assert Retries(delays=delays).delay(failures) == delays[min(max(failures - 1, 0), len(delays) - 1)]


WRONG_RULES: list[dict[str, Any]] = [
    *({"max_attempts": wrong} for wrong in (0, -1, True, 1.5, "3")),
    *({"delays": wrong} for wrong in (SECOND, [1], [-SECOND], None, "1s")),
    *({"never": wrong} for wrong in (ValueError, [ValueError()], ["ValueError"], [int], [KeyboardInterrupt], None)),
]


@pytest.mark.parametrize("wrong", WRONG_RULES, ids=repr)
def test_a_wrong_rule_says_what_was_found(wrong: dict[str, Any]):
    ((name, given),) = wrong.items()
    with pytest.raises(ConfigurationError, match="accepted") as raised:
        Retries(**wrong)
    assert str(raised.value).startswith(f"Retries: {name} is {given!r};")
