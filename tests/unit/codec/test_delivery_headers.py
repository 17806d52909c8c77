"""What is noted on a message: written as headers and read again, whatever else is there."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.codec import headers as own
from outboxkit.codec.headers import FRESH, MOST_ATTEMPTS, DeliveryHeaders, read_delivery_headers, without_own

MOMENTS = st.integers(0, 4 * 10**12).map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
NAMES = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=10),
    max_size=3,
    unique=True,
).map(tuple)
MARKS = st.builds(
    DeliveryHeaders,
    st.integers(1, MOST_ATTEMPTS),
    st.none() | MOMENTS,
    NAMES,
    st.none() | MOMENTS,
    st.sampled_from([(), ("type",), ("message_id",), ("message_id", "type")]),
    st.booleans(),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
RESERVED = [
    own.ATTEMPT,
    own.FIRST_FAILED,
    own.HANDLERS,
    own.ACCEPTED,
    own.ABSENT,
    own.REPLAYED,
]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


@given(MARKS)
def test_delivery_headers_are_read_as_they_were_written(sent: DeliveryHeaders):
    assert read_delivery_headers({"tenant": "a", **sent.headers()}) == sent


def test_nothing_is_noted_on_a_first_attempt():
    assert FRESH.headers() == {}
    assert read_delivery_headers({}) == read_delivery_headers({"a": 1, "x-outboxkit-": 2}) == FRESH


@given(st.dictionaries(st.sampled_from(RESERVED), VALUES))
def test_whatever_stands_in_a_reserved_header_is_no_error(headers: dict[str, Any]):
    found = read_delivery_headers(headers)
    assert found.attempt >= 1
    assert all(isinstance(name, str) for name in found.handlers)


@pytest.mark.parametrize(("found", "attempt"), [(None, 1), (1, 1), (7, 7), (0, 1), (-3, 1), ("9", 1), (2.5, 1)])
def test_an_attempt_is_at_least_the_first(found: object, attempt: int):
    assert read_delivery_headers({own.ATTEMPT: found}).attempt == attempt


def test_the_first_failure_and_who_is_still_to_run_stay():
    second = FRESH.next_attempt(now=NOW, handlers=("One", "Two"))
    assert second == DeliveryHeaders(2, NOW, ("One", "Two"))
    third = second.next_attempt(now=NOW + timedelta(days=1))
    assert third == DeliveryHeaders(3, NOW, ("One", "Two"))
    assert third.next_attempt(now=NOW, handlers=("Two",)) == DeliveryHeaders(4, NOW, ("Two",))


def test_no_reserved_header_is_left():
    assert without_own({"outboxkit-attempt": 1, "outboxkit-x": 2, "outbox": 3, "x-outboxkit-": 4}) == {
        "outbox": 3,
        "x-outboxkit-": 4,
    }
