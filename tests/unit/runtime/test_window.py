"""How old a delivery may be, and when its row may go."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import ids
from outboxkit.runtime import window
from tests.unit.shop import NOW

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
DELAYS = (timedelta(seconds=1), timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))


@pytest.mark.parametrize(
    ("id_", "timestamp", "accepted", "made"),
    [
        (ids.new(at=NOW), NOW + DAY, None, NOW),
        (ids.new(at=NOW), None, NOW + DAY, NOW + DAY),
        (ids.new(at=NOW), None, NOW - DAY, NOW),
        ("foreign", NOW, None, NOW),
        ("foreign", NOW, NOW + DAY, NOW + DAY),
        ("foreign", None, NOW, NOW),
        (ids.derive("order", 7), None, None, None),
        (ids.derive_from(ids.new(at=NOW - 30 * DAY), "H"), NOW, None, NOW),
    ],
    ids=range(8),
)
def test_from_when_a_messages_age_is_counted(
    id_: str, timestamp: datetime | None, accepted: datetime | None, made: datetime | None
):
    assert window.message_time(id_, timestamp, accepted) == made


def test_a_delivery_is_stale_when_it_is_older_than_the_retention_without_the_skew():
    def stale(age: timedelta) -> bool:
        return window.is_too_old(NOW - age, now=NOW, retention=DAY, skew=5 * MINUTE)

    limit = DAY - 5 * MINUTE
    assert [stale(age) for age in (-DAY, limit, limit + timedelta(microseconds=1), DAY)] == [False, False, True, True]
    assert not window.is_too_old(None, now=NOW, retention=DAY, skew=5 * MINUTE)


def test_a_row_may_go_when_it_is_older_than_the_retention_and_the_skew():
    assert window.forget_before(NOW, retention=DAY, skew=5 * MINUTE) == NOW - DAY - 5 * MINUTE


def test_a_retention_of_ages_forgets_nothing():
    far = window.forget_before(NOW, retention=timedelta(days=36_500 * 30), skew=DAY)
    assert far == datetime.min.replace(tzinfo=UTC)


moments = st.datetimes(NOW.replace(year=1990, tzinfo=None), NOW.replace(year=2090, tzinfo=None), timezones=st.just(UTC))
spans = st.timedeltas(timedelta(0), timedelta(days=60))


@given(made=moments, now=moments, pruned=spans, retention=spans, skew=spans, error=st.floats(-2, 2))
def test_what_is_forgotten_is_stale_from_then_on(
    made: datetime, now: datetime, pruned: timedelta, retention: timedelta, skew: timedelta, error: float
):
    """`error` is how far off the consumer's idea of the database's clock is, in skews."""
    forgotten = made < window.forget_before(now - pruned, retention=retention, skew=skew)
    late = now + skew * error
    assert not forgotten or window.is_too_old(made, now=late, retention=retention, skew=skew)


@pytest.mark.parametrize(
    ("attempts", "needed"), [(1, timedelta(0)), (2, timedelta(seconds=1)), (5, 671 * timedelta(seconds=1))]
)
def test_the_retention_must_outlast_the_retry_delays(attempts: int, needed: timedelta):
    assert window.needed(DELAYS, attempts, 5 * MINUTE) == needed + 5 * MINUTE


def test_attempts_beyond_the_delays_count_as_the_last_one():
    assert window.needed(DELAYS, 7, timedelta(0)) == sum(DELAYS, timedelta()) + 2 * DELAYS[-1]


def test_twice_as_much_is_recommended():
    assert window.recommended(DELAYS, 5, 5 * MINUTE) == 2 * window.needed(DELAYS, 5, 5 * MINUTE)
