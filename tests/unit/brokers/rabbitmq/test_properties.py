"""Properties are read as pamqp reads them; what it cannot read is said, with what could be."""

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import Properties

SHORT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | SHORT
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 4 * 10**9).map(lambda second: datetime.fromtimestamp(second, UTC))
    | st.sampled_from([Decimal("1.5"), 0.5, bytearray(b"\xff")]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT.map(lambda name: name[:30]), inner, max_size=3),
    max_leaves=8,
)
TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "message_type")
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*TEXTS, "user_id", "app_id"), SHORT),
        "headers": st.dictionaries(SHORT.map(lambda name: name[:30]), VALUES, max_size=4),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 4 * 10**9).map(lambda second: datetime.fromtimestamp(second, UTC)),
    },
)


def written(**given: Any) -> tuple[int, bytes]:
    found = Basic.Properties(**given).marshal()
    return int.from_bytes(found[:2]), found[2:]


@given(GIVEN)
def test_everything_is_read_as_the_client_library_reads_it(given: dict[str, Any]):
    flags, bytes_ = written(**given)
    expected = Basic.Properties()
    expected.unmarshal(flags, bytes_)
    found = decode.read_properties(flags, bytes_)
    assert found.unreadable is None
    for name in (*TEXTS, "user_id", "app_id", "headers", "delivery_mode", "priority", "timestamp"):
        assert getattr(found, name) == getattr(expected, name), name


def test_the_last_of_the_fourteen_is_read_too():
    assert decode.read_properties(0x0004, b"\x03abc") == Properties(cluster_id="abc")


@given(GIVEN, st.data())
def test_cut_short_it_says_so_or_has_lost_nothing(given: dict[str, Any], data: st.DataObject):
    flags, bytes_ = written(**given)
    kept = data.draw(st.integers(0, len(bytes_)))
    found = decode.read_properties(flags, bytes_[:kept])
    assert kept == len(bytes_) or found.unreadable is not None


def test_milliseconds_are_taken_for_what_they_are():
    made = decode.read_properties(0x0040, struct.pack(">Q", 1_772_600_767_500)).timestamp
    assert made == datetime(2026, 3, 4, 5, 6, 7, 500_000, tzinfo=UTC)


def table(*fields: bytes) -> bytes:
    return struct.pack(">I", len(b"".join(fields))) + b"".join(fields)


BROKEN_FIELDS = {
    "a header's timestamp": b"\x01aT" + struct.pack(">Q", 2**62),
    "name": b"\x02\xff\xfeV",
    "too long": b"\x01aS\x00\x00\x00\x09x",
    "unknown kind": b"\x01a?",
    "name too long": b"\x09a",
    "list too long": b"\x01aA\x00\x00\x00\x09V",
    "cut short": b"\x01aD\xff",
}


@pytest.mark.parametrize(
    ("name", "flags", "bytes_"),
    [
        *(
            ("timestamp", 0x00E0, b"\x03m-1" + struct.pack(">Q", late) + b"\x01T")
            for late in (2**62, 2**64 - 1, 10**16)
        ),
        ("correlation_id", 0x04A0, b"\x02\xff\xfe\x03m-1\x01T"),
        *(("headers", 0x20A0, table(b"\x04goodV", field) + b"\x03m-1\x01T") for field in BROKEN_FIELDS.values()),
    ],
    ids=["2**62", "2**64 - 1", "10**16", "no UTF-8", *BROKEN_FIELDS],
)
def test_what_cannot_be_read_leaves_the_rest_readable(name: str, flags: int, bytes_: bytes):
    found = decode.read_properties(flags, bytes_)
    assert str(found.unreadable).startswith(f"its {name} cannot be read")
    assert (getattr(found, name), found.message_id, found.message_type) == (None, "m-1", "T")


def test_bytes_that_are_no_text_stay_bytes():
    found = decode.read_properties(0x2000, table(b"\x01aS\x00\x00\x00\x02\xff\xfe"))
    assert found.headers == {"a": b"\xff\xfe"}


def test_properties_of_another_protocol_are_not_guessed_at():
    assert "does not know" in str(decode.read_properties(0x0081, b"\x01m").unreadable)
