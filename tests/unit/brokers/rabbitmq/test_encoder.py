"""The frames of a batch, read by pamqp, which did not write them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from outboxkit import Message
from outboxkit.brokers.rabbitmq import encode
from outboxkit.brokers.rabbitmq.encode import Encoder, Unwritable
from tests.support.plain_client import keyed
from tests.unit.brokers.rabbitmq.test_to_message import MESSAGES
from tests.unit.shop import NOW, message

FRAME_MAX = 4096
"""The smallest that a peer may ask for (AMQP 0-9-1, section 1.4.2.6)."""
CHANNEL = 7


def encoder(frame_max: int = FRAME_MAX) -> Encoder:
    return Encoder("shop-events", app_id="shop", channel=CHANNEL, frame_max=frame_max)


def write(*messages: Message, by: Encoder | None = None) -> bytes:
    pieces: list[bytes] = []
    by = by or encoder()
    for each in messages:
        by.write(each, pieces)
    return b"".join(pieces)


def read(buffer: bytes) -> list[tuple[commands.Basic.Publish, ContentHeader, bytes]]:
    """What pamqp finds in the buffer, frame by frame to its very end."""
    found: list[Any] = []
    while buffer:
        size, channel, each = frame.unmarshal(buffer)
        assert 0 < size <= FRAME_MAX
        assert channel == CHANNEL
        buffer = buffer[size:]
        if isinstance(each, commands.Basic.Publish):
            found.append([each, None, b""])
        elif isinstance(each, ContentHeader):
            found[-1][1] = each
        else:
            assert isinstance(each, ContentBody)
            assert each.value, "an empty frame says nothing"
            found[-1][2] += each.value
    return [tuple(each) for each in found]


def expected(sent: Message) -> dict[str, Any]:
    own = {} if sent.key is None else keyed(sent.key)
    own["outboxkit-causation-id"] = sent.causation_id
    own["outboxkit-version"] = sent.version if sent.version > 1 else None
    headers = {**sent.headers, **{name: value for name, value in own.items() if value is not None}}
    given = {
        "content_type": sent.content_type,
        "content_encoding": sent.content_encoding,
        "headers": headers or None,
        "delivery_mode": 2,
        "correlation_id": sent.correlation_id,
        "message_id": sent.id,
        "timestamp": sent.created_at,
        "message_type": sent.type,
        "app_id": "shop",
    }
    return {name: value for name, value in given.items() if value is not None}


@given(st.lists(MESSAGES, max_size=5))
def test_a_reader_finds_every_message_as_it_was(batch: list[Message]):
    found = read(write(*batch))
    assert len(found) == len(batch)
    for sent, (method, header, body) in zip(batch, found, strict=True):
        assert (method.exchange, method.routing_key) == ("shop-events", sent.routing_key)
        assert (method.mandatory, method.immediate) == (True, False)
        assert {name: value for name, value in dict(header.properties).items() if value} == expected(sent)
        assert (header.body_size, body) == (len(sent.payload), sent.payload)


@given(st.integers(0, 4 * FRAME_MAX))
def test_a_body_is_split_where_the_peer_wants_it(size: int):
    payload = bytes(range(256)) * (size // 256 + 1)
    sent = message(payload=payload[:size])
    ((_, header, body),) = read(write(sent))
    assert (header.body_size, body) == (size, sent.payload)


@pytest.mark.parametrize("size", [FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 2 * (FRAME_MAX - 8)])
def test_a_body_takes_no_frame_more_than_it_needs(size: int):
    buffer, bodies = write(message(payload=b"x" * size)), 0
    while buffer:
        length, _, each = frame.unmarshal(buffer)
        buffer, bodies = buffer[length:], bodies + isinstance(each, ContentBody)
    assert bodies == -(-size // (FRAME_MAX - 8))


@pytest.mark.parametrize(
    "value", ["", "Zoë", True, None, 0, 127, 128, -32_769, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 1e300], ids=repr
)
def test_a_header_keeps_its_value(value: object):
    ((_, header, _),) = read(write(message(headers={"name": value})))
    assert header.properties.headers == {"name": value}
    assert type(header.properties.headers["name"]) is type(value)


def test_headers_of_a_replayed_foreign_message_are_written_too():
    headers = {"list": ["a", 1], "table": {"a": None}}
    ((_, header, _),) = read(write(message(headers=headers)))
    assert header.properties.headers == headers


def test_a_time_before_the_epoch_is_left_out():
    ((_, header, _),) = read(write(message(created_at=NOW.replace(year=1969))))
    assert header.properties.timestamp is None


class Unchecked:
    """A message as a relay may build it from a row that another program wrote: nothing was checked."""

    def __init__(self, **given: Any) -> None:
        checked = message()
        for name in Message.__dataclass_fields__:
            setattr(self, name, given.get(name, getattr(checked, name)))


LONG = "é" * 128  # 128 characters, 256 bytes
UNWRITABLE = [
    {"id": LONG},
    {"type": LONG},
    {"topic": LONG},
    {"content_type": LONG},
    {"content_encoding": LONG},
    {"correlation_id": LONG},
    {"id": "\ud800"},
    {"headers": {LONG: 1}},
    {"headers": {"a": "\ud800"}},
    {"headers": {"a": object()}},
    {"headers": {"a": 2**63}},
    {"headers": {"a": b"\xff"}},
    {"headers": {"a": "x" * FRAME_MAX}},
    {"headers": {f"header-{number}": number for number in range(500)}},
]


@pytest.mark.parametrize("given", UNWRITABLE, ids=lambda given: next(iter(given)))
def test_what_cannot_be_written_is_refused_alone(given: dict[str, Any]):
    pieces: list[bytes] = []
    writer = encoder()
    writer.write(message(id="before"), pieces)
    with pytest.raises(Unwritable) as raised:
        writer.write(Unchecked(**given), pieces)  # type: ignore[arg-type]
    writer.write(message(id="after"), pieces)
    found = [header.properties.message_id for _, header, _ in read(b"".join(pieces))]
    assert found == ["before", "after"]
    assert len(str(raised.value).splitlines()) == 1


def test_a_key_may_be_longer_than_a_name():
    ((_, header, _),) = read(write(Unchecked(key=LONG)))  # type: ignore[arg-type]
    assert header.properties.headers == keyed(LONG)


def test_more_routes_than_are_remembered_are_still_right(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encode, "CACHE_SIZE", 3)
    writer = encoder()
    batch = [message(topic=f"orders.{n % 5}", headers={f"h{n % 7}": n}) for n in range(50)]
    found = read(write(*batch, by=writer))
    assert [method.routing_key for method, _, _ in found] == [sent.topic for sent in batch]
    assert [header.properties.headers for _, header, _ in found] == [dict(sent.headers) for sent in batch]
    assert max(len(writer._routes), len(writer._names)) <= 3


def test_a_message_for_one_queue_goes_past_the_exchange_and_keeps_its_topic_in_a_header():
    by, addressed = encoder(), message(topic="orders.eu", queue="billing", headers={"a": 1})
    sent = read(write(addressed, message(topic="orders.eu"), replace(addressed, topic=None), by=by))
    assert [(method.exchange, method.routing_key) for method, _, _ in sent] == [
        ("", "billing"),
        ("shop-events", "orders.eu"),
        ("", "billing"),
    ]
    headers = [header.properties.headers for _, header, _ in sent]
    assert headers == [{"a": 1, "outboxkit-topic": t} if t else None for t in ("orders.eu", None, "OrderConfirmed")]
