"""What identifies a request: its row, and its locks."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.errors import ConfigurationError
from outboxkit.idempotency.request import KeyRequest, Locks, check_span, check_text, row_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
A, B = b"a" * 32, b"b" * 32


def locks(*texts: str, fingerprint: bytes = A) -> Locks:
    return Locks.of(row_of(*texts), fingerprint)


@given(st.tuples(TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS))
def test_two_keys_share_a_lock_only_where_they_are_one(one: tuple[str, str, str], other: tuple[str, str, str]):
    assert (locks(*one).request == locks(*other).request) is (one == other)


def test_where_one_text_ends_matters():
    assert locks("ab", "c", "d").request != locks("a", "bc", "d").request
    assert locks("a", "b", "cd").request != locks("a", "bc", "d").request


def test_the_numbers_are_the_same_in_every_process_and_version():
    assert locks("POST /orders", "alice", "k-1") == Locks(7450568881105693822, 1958204208, 0x61616161)


def test_what_is_asked_changes_its_half_alone():
    one, other = locks("s", "p", "k"), locks("s", "p", "k", fingerprint=B)
    assert (one.request, one.request_part) == (other.request, other.request_part)
    assert one.asked_part != other.asked_part


@given(TEXTS, st.binary(min_size=32, max_size=32))
def test_halves_are_signed_where_they_are_taken_and_unsigned_where_they_are_shown(key: str, fingerprint: bytes):
    found = locks("s", "p", key, fingerprint=fingerprint)
    taken, shown = found.to_take(), found.to_find()
    assert taken["request_lock"] == shown["request_lock"]
    assert -(2**63) <= found.request < 2**63
    for signed, unsigned in ((taken["request_part"], shown["request_part"]), (taken["asked_part"], found.part_shown)):
        assert -(2**31) <= signed < 2**31
        assert 0 <= unsigned < 2**32
        assert (signed - unsigned) % 2**32 == 0


def test_a_principal_that_looks_like_a_digest_is_digested():
    long = "x" * 300
    digest = row_of("s", long, "k")["at_principal"]
    assert row_of("s", digest, "k")["at_principal"] not in (digest, long)
    assert row_of("s", "x" * 255, "k")["at_principal"] == "x" * 255
    assert row_of("s", None, "k")["at_principal"] == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "has 0 characters; 1 to 3"), ("abcd", "has 4 characters; 1 to 3"), ("\0", "NUL"), ("\udcff", "surrogate")],
)
def test_text_that_cannot_be_kept(text: str, says: str):
    with pytest.raises(ValueError, match=f"^key .*{says}"):
        check_text("key", text, 3)


def test_text_of_any_length_is_not_empty():
    check_text("principal", "x" * 10_000, None)
    with pytest.raises(ValueError, match="principal has 0 characters; at least 1"):
        check_text("principal", "", None)


def test_spans():
    check_span("wait", timedelta(0), zero=True)
    check_span("lease", timedelta(milliseconds=1))
    for refused in (timedelta(0), timedelta(microseconds=999), timedelta(days=40_000), 1.5, None):
        with pytest.raises(ConfigurationError, match=r"^lease is .*a timedelta of a millisecond to a hundred years"):
            check_span("lease", refused)


def test_a_lease_ends_before_the_key_expires():
    hour = timedelta(hours=1)
    KeyRequest("s", None, "k", A, "t", hour, hour)
    with pytest.raises(ConfigurationError, match=r"lease 1:00:00\.001000 is longer than retention 1:00:00"):
        KeyRequest("s", None, "k", A, "t", hour, hour + timedelta(milliseconds=1))
