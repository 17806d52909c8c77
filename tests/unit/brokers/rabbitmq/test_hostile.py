"""What strangers send over AMQP, by a grammar: it is a message or a dead letter, and its copies are the same."""

import random
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outboxkit import DecodeError, Message, Outcome
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.encode import Encoder, copy_properties
from outboxkit.brokers.rabbitmq.incoming import HEADER_WEIGHT, RabbitDelivery, RawDelivery
from outboxkit.codec.envelopes import CloudEvents, reader_for
from outboxkit.codec.envelopes.envelope import Malformed, read_with
from outboxkit.codec.headers import MAX_DEPTH, MOST_ATTEMPTS, MOST_HANDLERS, carried
from outboxkit.consumer.decisions import Decision, dead_letter_row, malformed
from outboxkit.message import LAST_MOMENT
from tests.support.grammar import Grammar, short, sized
from tests.support.night import by_night

MANY = settings(max_examples=by_night(5000, else_=150))
RANDOM = st.randoms(use_true_random=False)
ROOM = 131_064
NOW = datetime(2026, 3, 4, tzinfo=UTC)


def delivery_of(flags: int, data: bytes, body: bytes = b"{}", *, dropped: bool = False) -> RabbitDelivery:
    properties = decode.read_properties(flags, data)
    raw = RawDelivery(1, False, "billing", "OrderConfirmed", flags, data, properties, body)
    return RabbitDelivery(raw, cast("Any", None), cast("Any", None), dropped=dropped)


def buried(delivery: RabbitDelivery, message: Message | Malformed) -> dict[str, Any]:
    """Its dead letter, which every table can hold."""
    noted = delivery.delivery_headers
    assert 1 <= noted.attempt <= MOST_ATTEMPTS
    assert len(noted.handlers) <= MOST_HANDLERS
    decision = malformed(message) if isinstance(message, Malformed) else Decision(Outcome.DEAD, "failed", "boom")
    row = dead_letter_row(
        message, decision, queue="q", handler=None, attempts=noted.attempt, first_failed_at=noted.first_failed_at
    )
    assert all("\0" not in value and value.encode() for value in row.values() if isinstance(value, str) and value)
    assert len(row["error"]) <= 1000
    assert row["created_at"] is None or row["created_at"] <= LAST_MOMENT
    return row


def write(row: dict[str, Any]) -> None:
    """Publish the dead letter again: all that `carried` leaves of its headers can be written."""
    headers = carried(msgspec.json.decode(row["headers"]))
    message = Message(row["message_id"] or "m", row["type"] or "T", row["payload"], topic=row["topic"], headers=headers)
    Encoder("outboxkit", app_id="shop", channel=1, frame_max=131_072).write(message, [])


@MANY
@given(RANDOM)
def test_any_delivery_is_a_message_or_a_dead_letter_and_its_copy_is_the_same(chance: random.Random):
    grammar = Grammar(chance)
    flags, data = grammar.properties()
    if grammar.one_in(3):
        data = grammar.spoiled(data)
    delivery = delivery_of(flags, data, grammar.body(), dropped=grammar.one_in(4))
    row = buried(delivery, delivery.message)
    try:
        by_reader = read_with((CloudEvents(),), delivery.envelope)
    except DecodeError as error:
        by_reader = Malformed.of(delivery.envelope, str(error), kind="undecodable")
    if by_reader is not None:
        row = buried(delivery, by_reader)
    write(row)
    marked = delivery.delivery_headers.next_attempt(now=NOW)
    again, rest, left_out = copy_properties(flags, data, marked, delivery.topic, room=ROOM)
    copy = delivery_of(again, rest, delivery.raw.body)
    assert copy.delivery_headers == replace(marked, attempt=min(marked.attempt, MOST_ATTEMPTS))
    assert not left_out
    if isinstance(delivery.message, Message):
        assert isinstance(copy.message, Message)
        came, copied = delivery.message, copy.message
        own = {name: value for name, value in came.headers.items() if name not in ("CC", "BCC")}
        assert (copied.id, copied.type, copied.key, copied.payload) == (came.id, came.type, came.key, came.payload)
        assert repr(dict(copied.headers)) == repr(own)


@MANY
@given(RANDOM)
def test_any_envelope_is_a_message_or_undecodable(chance: random.Random):
    envelope = Grammar(chance).envelope()
    try:
        message = read_with((CloudEvents({"T": "OrderConfirmed"}),), envelope)
    except DecodeError as error:
        message = Malformed.of(envelope, str(error), kind="undecodable")
    if isinstance(message, Malformed):
        assert "failed:" not in message.reason, "the reader itself knows what is wrong"
        assert len(message.reason) < 600
    reader_for(envelope)
    if message is not None:
        row = buried(delivery_of(0x00A0, b"\x01m\x01T"), message)
        write(row)


LONG = {
    "nothing": b"\x01aA" + sized(b"V" * 120_000),
    "flags": b"\x01aA" + sized(b"t\x01" * 60_000),
    "tables": b"\x01aA" + sized(b"F\0\0\0\0" * 24_000),
    "fields": b"\x01aF" + sized(b"".join(b"\x04%04xV" % number for number in range(20_000))),
    "names": b"".join(short(b"%04x" % number) + b"t\x01" for number in range(17_000)),
}


@pytest.mark.parametrize("field", LONG.values(), ids=LONG)
def test_a_long_table_is_read_in_bounded_memory_and_in_a_time_that_grows_as_it_does(
    field: bytes, monkeypatch: pytest.MonkeyPatch
):
    copied: list[int] = []
    read = decode.decode.embedded_value
    monkeypatch.setattr(decode.decode, "embedded_value", lambda data: copied.append(len(data)) or read(data))
    tracemalloc.start()
    try:
        found = decode.read_properties(0x2000, sized(field))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.unreadable is None
    assert found.headers
    assert sum(copied) <= len(field), "no value's decoder gets more than the value"
    assert size - 60 * len(copied) < HEADER_WEIGHT * len(field)


@pytest.mark.parametrize("follows", [b"", b"t\x01", b"\x03m-1", b"S\0\0\0\0"])
def test_a_name_without_a_value_at_the_end_of_a_table_is_told(follows: bytes):
    data = sized(b"\x01a") + follows
    found = decode.read_properties(0x2000, data)
    assert found == Properties(unreadable="its headers cannot be read: it is cut off")
    assert copy_properties(0x2000, data, delivery_of(0x2000, data).delivery_headers, "t", room=ROOM)


@pytest.mark.parametrize("kind", [b"A", b"F"])
@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1, 5_000])
def test_tables_and_arrays_are_read_to_the_same_depth(kind: bytes, levels: int):
    value = b"V"
    for _ in range(levels):
        value = kind + sized((b"\x01n" if kind == b"F" else b"") + value)
    found = decode.read_properties(0x2000, sized(b"\x01a" + value))
    assert (found.unreadable is None) is (levels <= MAX_DEPTH)
