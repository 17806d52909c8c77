"""The properties of a copy: those of its message, byte by byte, with our delivery headers."""

import struct
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pamqp.commands import Basic

from outboxkit import Message
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.encode import Unwritable, copy_properties
from outboxkit.codec.headers import DeliveryHeaders, read_delivery_headers
from tests.unit.brokers.rabbitmq.test_to_message import MESSAGES, published, read
from tests.unit.shop import NOW

ROOM = 131_064
TWICE = DeliveryHeaders(attempt=2)


def marshalled(**given: Any) -> tuple[int, bytes]:
    written = Basic.Properties(**({"message_id": "m-1", "message_type": "OrderConfirmed"} | given)).marshal()
    return int.from_bytes(written[:2]), written[2:]


def table(*fields: bytes) -> tuple[int, bytes]:
    """Properties with these headers and nothing else."""
    return 0x2000, struct.pack(">I", len(b"".join(fields))) + b"".join(fields)


def copied(
    flags: int, written: bytes, marked: DeliveryHeaders = TWICE, topic: str = "t", room: int = ROOM
) -> Properties:
    assert decode.read_properties(flags, written).unreadable is None
    again, rest, _ = copy_properties(flags, written, marked, topic, room=room)
    return decode.read_properties(again, rest)


@given(MESSAGES)
def test_a_copy_is_the_same_message_with_other_delivery_headers(sent: Message):
    assume(not {"CC", "BCC"} & sent.headers.keys())
    written = published(sent).marshal()
    flags, rest, topic, marked = int.from_bytes(written[:2]), written[2:], sent.routing_key, DeliveryHeaders()
    for attempt in (1, 2, 3):
        found = decode.read_properties(flags, rest)
        assert read_delivery_headers(found.headers or {}) == marked
        assert marked.attempt == attempt
        assert read(found, sent.payload, topic) == sent
        marked = marked.next_attempt(now=NOW, handlers=("One", "Two"))
        flags, rest, _ = copy_properties(flags, rest, marked, decode.topic_of(found, topic), room=ROOM)
        topic = "billing.retry.1s"


def test_everything_is_kept_but_what_would_lose_the_copy():
    flags, written = marshalled(
        priority=5, reply_to="q", expiration="60000", user_id="guest", app_id="shop", delivery_mode=1, headers={"a": 1}
    )
    again = copied(flags | 0x0004, written + b"\x07cluster")
    assert (again.priority, again.reply_to, again.app_id, again.message_id) == (5, "q", "shop", "m-1")
    assert (again.delivery_mode, again.expiration, again.user_id, again.cluster_id) == (2, None, None, None)
    assert again.headers == {"a": 1, "outboxkit-attempt": 2, "outboxkit-topic": "t"}


def test_what_others_wrote_for_themselves_is_not_copied():
    headers = {"CC": ["other"], "BCC": ["third"], "x-death": [{"count": 1}], "x-delivery-count": 3, "x-mine": 1}
    again = copied(*marshalled(headers=headers | {"outboxkit-attempt": 7, "outboxkit-other": "x"}))
    assert again.headers == {"x-mine": 1, "outboxkit-attempt": 2, "outboxkit-topic": "t"}


@pytest.mark.parametrize(
    ("flags", "written", "names"),
    [
        (0x00E0, b"\x03m-1" + struct.pack(">Q", 2**63) + b"\x01T", {"message_id", "message_type"}),
        (0x80A0, b"\x02\xff\xfe" + b"\x03m-1" + b"\x01T", {"message_id", "message_type"}),
        (0x2020, struct.pack(">I", 6) + b"\x02CCt\x01?" + b"\x01T", {"message_type"}),
        (0x2020, struct.pack(">I", 90) + b"\x01T", set()),
        (0x0021, b"\x01T", set()),
    ],
    ids=["timestamp", "text", "headers", "cut off", "more flags"],
)
def test_a_copy_has_its_attempt_whatever_cannot_be_read(flags: int, written: bytes, names: set[str]):
    assert decode.read_properties(flags, written).unreadable is not None
    again = decode.read_properties(*copy_properties(flags, written, TWICE, "t", room=ROOM)[:2])
    assert again.unreadable is None
    assert again.headers == {"outboxkit-attempt": 2, "outboxkit-topic": "t"}
    assert names == {
        name for name in ("message_id", "message_type", "content_type", "timestamp") if getattr(again, name)
    }


@given(st.integers(0, 2**16 - 1), st.binary(max_size=80))
def test_a_copy_of_whatever_bytes_can_be_read(flags: int, written: bytes):
    decode.read_properties(flags, written)  # and raises nothing
    again, rest, _ = copy_properties(flags, written, TWICE, "t", room=ROOM)
    found = decode.read_properties(again, rest)
    assert found.unreadable is None
    assert read_delivery_headers(found.headers or {}) == TWICE


@pytest.mark.parametrize(
    "field",
    [
        b"\x01aS\x00\x00\x00\x02\xff\xfe",
        b"\x01ax\x00\x00\x00\x02\xff\xfe",
        b"\x01ad" + struct.pack(">d", 0.1),
        b"\x01af" + struct.pack(">f", 0.5),
        b"\x01aD\x02\xff\xff\xff\xff",
        b"\x01aT" + struct.pack(">Q", 1_772_600_767_500),
        b"\x01aI" + struct.pack(">i", -7),
        b"\x01aF\x00\x00\x00\x09\x02inA\x00\x00\x00\x01V",
        b"\x01aV",
        b"\x01a\x00",
        b"\x00S\x00\x00\x00\x00",
        b"\xff" + b"n" * 255 + b"t\x01",
        b"\x15" + b'"}\n{"event":"forged"}' + b"t\x01",
    ],
    ids=lambda field: repr(field[:12]),
)
def test_a_header_of_any_type_and_name_stays_what_it_was(field: bytes, caplog: pytest.LogCaptureFixture):
    flags, written = table(field)
    _, rest, left_out = copy_properties(flags, written, TWICE, "t", room=ROOM)
    assert rest[4 : 4 + len(field)] == field
    assert not left_out
    assert not caplog.records, "no library says anything, least of all with a foreign name in it"


def test_if_all_does_not_fit_the_largest_of_the_senders_headers_are_left_out():
    headers = {"small": 1, "large": "x" * 600, "larger": "x" * 700, "outboxkit-key": "k" * 255}
    flags, written = marshalled(headers=headers)
    again, rest, left_out = copy_properties(flags, written, TWICE, "t", room=1100)
    assert left_out == ["larger"]
    assert (decode.read_properties(again, rest).headers or {}).keys() == {
        *("small", "large", "outboxkit-key", "outboxkit-attempt", "outboxkit-topic")
    }
    assert len(rest) + 14 <= 1100
    for size in range(len(rest) + 13, 420, -7):
        again, rest, left_out = copy_properties(flags, written, TWICE, "t", room=size)
        assert len(rest) + 14 <= size
        assert "outboxkit-key" not in left_out
    with pytest.raises(Unwritable, match="bytes more than a frame holds"):
        copy_properties(flags, written, DeliveryHeaders(attempt=2, handlers=("h" * 255,) * 5), "t", room=1100)


def test_delivery_headers_that_cannot_be_encoded_are_told():
    with pytest.raises(Unwritable, match="its delivery headers cannot be encoded"):
        copy_properties(*marshalled(), DeliveryHeaders(attempt=2**70), "t", room=ROOM)
