"""Headers: what the outbox row keeps of them."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import EncodeError
from outboxkit.codec.headers import encode_foreign_headers
from outboxkit.codec.rows import decode_headers, encode_headers

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=32)
NAMES = TEXT.filter(lambda name: name and not name.startswith("outboxkit-"))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    TEXT,
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_headers_come_back_as_they_were(headers: dict[str, Any]):
    found = decode_headers(encode_headers(headers))
    assert found == headers
    assert {name: type(value) for name, value in found.items()} == {name: type(headers[name]) for name in headers}


@pytest.mark.parametrize("name", ["outboxkit-key", "outboxkit-", "outboxkit-attempt", "CC", "BCC"])
def test_our_own_names_are_reserved(name: str):
    with pytest.raises(EncodeError, match=f"header '{name}' is reserved"):
        encode_headers({name: "x"})


@pytest.mark.parametrize(
    "value", [b"raw", ["a"], {"a": 1}, Decimal(1), datetime(2026, 3, 1, tzinfo=UTC), 0.1, object()]
)
def test_a_value_is_a_plain_one(value: object):
    """AMQP drivers round a float."""
    with pytest.raises(EncodeError, match=r"header 'a' is .* str, int, bool or None is accepted"):
        encode_headers({"a": value})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_an_integer_fits_64_bits(value: int):
    with pytest.raises(EncodeError, match=r"header 'a' .* 64 bits; send it as a str"):
        encode_headers({"a": value})


@pytest.mark.parametrize("headers", [{"a": "\ud800"}, {"\ud800": "a"}])
def test_a_lone_surrogate_is_refused(headers: dict[str, Any]):
    with pytest.raises(EncodeError):
        encode_headers(headers)


def test_headers_of_any_client_can_be_kept_for_people_to_read():
    headers = {
        "text": "a",
        "raw": b"\xff",
        "when": datetime(2026, 3, 1, tzinfo=UTC),
        "table": {"list": [1, None, 1j]},
        "number": float("nan"),
    }
    assert msgspec.json.decode(encode_foreign_headers(headers)) == {
        "text": "a",
        "raw": "/w==",
        "when": "2026-03-01T00:00:00Z",
        "table": {"list": [1, None, "1j"]},
        "number": None,
    }


def test_all_headers_fit_into_one_amqp_frame():
    assert encode_headers({f"h{number}": "x" * 1000 for number in range(60)})
    with pytest.raises(EncodeError, match=r"headers are \d+ bytes long"):
        encode_headers({"a": "x" * 130_000})
    with pytest.raises(EncodeError, match=r"headers are \d+ bytes long"):
        encode_headers({f"h{number}": "x" * 1000 for number in range(131)})


def test_headers_that_nothing_can_show_are_kept_by_name():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    stored = encode_foreign_headers({"deep": deep, "sane": 1, "\ud800": "\ud801"})
    assert msgspec.json.decode(stored) == {
        "deep": "nested too deeply to be shown",
        "sane": "1",
        "\\ud800": "\\ud801",
    }
    while deep:  # freed level by level
        deep = deep[0]
