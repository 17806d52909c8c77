"""Messages as AMQP properties and back: what other languages see, and what they may send."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aiormq.abc import DeliveredMessage
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from outboxkit import Message
from outboxkit.brokers import Malformed
from outboxkit.brokers.rabbitmq import wire
from outboxkit.brokers.rabbitmq.frames import Encoder
from tests.unit.shop import NOW, message

NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
HEADERS = st.dictionaries(
    NAMES.map(lambda name: name[:32]).filter(lambda name: not name.startswith((wire.OWN, *wire.BROKERS_OWN))),
    st.none() | st.booleans() | NAMES | st.integers(-(2**63), 2**63 - 1),
    max_size=4,
)
SECONDS = st.integers(86_400, 4 * 10**9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
MESSAGES = st.builds(
    Message,
    id=NAMES,
    type=NAMES,
    payload=st.binary(max_size=50),
    key=st.none() | NAMES,
    topic=NAMES,
    headers=HEADERS,
    correlation_id=st.none() | NAMES,
    causation_id=st.none() | NAMES,
    created_at=SECONDS,
    content_type=NAMES,
    content_encoding=st.none() | NAMES,
)


def published(sent: Message) -> Basic.Properties:
    """The properties as they are on the wire when the publisher has written the message."""
    pieces: list[bytes] = []
    Encoder("outboxkit", app_id="shop", channel=1, frame_max=131_072).write(sent, pieces)
    frames = b"".join(pieces)
    size, _, _ = frame.unmarshal(frames)
    _, _, header = frame.unmarshal(frames[size:])
    assert isinstance(header, ContentHeader)
    return header.properties


def over_the_wire(properties: Basic.Properties) -> Basic.Properties:
    """The properties as a broker hands them on: through their binary form."""
    written, read = properties.marshal(), Basic.Properties()
    read.unmarshal(int.from_bytes(written[:2], "big"), written[2:])
    return read


def delivered(
    properties: Basic.Properties, *, body: bytes = b"{}", routing_key: str | None = "OrderConfirmed"
) -> DeliveredMessage:
    arrival = Basic.Deliver("consumer", 1, redelivered=False, exchange="outboxkit", routing_key=routing_key)
    return DeliveredMessage(delivery=arrival, header=ContentHeader(0, len(body), properties), body=body, channel=None)


def foreign(**given: Any) -> DeliveredMessage:
    """A delivery from a plain client that set what is given."""
    return delivered(Basic.Properties(**({"message_id": "m-1", "message_type": "OrderConfirmed"} | given)))


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(sent: Message):
    properties = published(sent)
    arrived = delivered(properties, body=sent.payload, routing_key=sent.routing_key)
    assert wire.to_message(arrived) == sent


@given(MESSAGES)
def test_a_retried_message_is_the_same_message_one_attempt_older(sent: Message):
    properties = published(sent)
    arrived = delivered(properties, body=sent.payload, routing_key=sent.routing_key)
    for attempt in (1, 2, 3):
        assert wire.attempt_of(arrived) == attempt
        assert wire.to_message(arrived) == sent
        properties = over_the_wire(wire.as_next_attempt(arrived))
        arrived = delivered(properties, body=sent.payload, routing_key="billing.retry.1s")


def test_the_properties_are_those_of_the_design():
    sent = message(
        key="order-7", headers={"tenant": "a"}, correlation_id="c", causation_id="d", content_encoding="gzip"
    )
    properties = published(sent)
    assert (properties.message_id, properties.message_type, properties.app_id) == ("m-1", "OrderConfirmed", "shop")
    assert (properties.content_type, properties.content_encoding) == ("application/json", "gzip")
    assert (properties.correlation_id, properties.timestamp, properties.delivery_mode) == ("c", NOW, 2)
    assert properties.headers == {"tenant": "a", "outboxkit-key": "order-7", "outboxkit-causation-id": "d"}


def test_what_is_not_there_is_not_sent():
    properties = published(message(created_at=None))
    assert properties.headers is None
    assert (properties.correlation_id, properties.timestamp, properties.content_encoding) == (None, None, None)


def test_a_plain_client_needs_an_id_and_a_type_only():
    found = wire.to_message(foreign())
    assert isinstance(found, Message)
    assert (found.id, found.type, found.payload, found.topic) == ("m-1", "OrderConfirmed", b"{}", "OrderConfirmed")
    assert (found.key, found.created_at, found.correlation_id, dict(found.headers)) == (None, None, None, {})
    assert found.content_type == "application/json"


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("message_id", "the message has no message_id"), ("message_type", "the message has no type")],
)
@pytest.mark.parametrize("value", [None, ""])
def test_what_lacks_an_id_or_a_type_is_kept_with_the_reason(missing: str, reason: str, value: str | None):
    found = wire.to_message(
        foreign(**{missing: value, "headers": {"a": 1}, "correlation_id": "c", "content_type": "x/y"})
    )
    assert isinstance(found, Malformed)
    assert (found.reason, found.payload, dict(found.headers)) == (reason, b"{}", {"a": 1})
    assert (found.correlation_id, found.content_type) == ("c", "x/y")
    known = {"message_id": found.message_id, "message_type": found.type}
    assert known.pop(missing) is None
    assert all(known.values())


def test_what_postgresql_cannot_store_is_malformed():
    found = wire.to_message(foreign(message_id="a\0b"))
    assert isinstance(found, Malformed)
    assert "NUL" in found.reason


@pytest.mark.parametrize("value", [1, b"\xff", {"a": 1}, ["a"], None, True])
def test_headers_of_our_names_that_are_no_text_are_passed_over(value: object):
    found = wire.to_message(
        foreign(headers={"outboxkit-key": value, "outboxkit-causation-id": value, "outboxkit-topic": value})
    )
    assert isinstance(found, Message)
    assert (found.key, found.causation_id, found.topic, dict(found.headers)) == (None, None, None, {})


def test_the_brokers_own_headers_are_not_the_messages():
    headers = {"x-death": [{"count": 1}], "x-delivery-count": 3, "x-first-death-queue": "q", "x-mine": 1}
    found = wire.to_message(foreign(headers=headers))
    assert isinstance(found, Message)
    assert dict(found.headers) == {"x-mine": 1}
    assert set(wire.as_next_attempt(foreign(headers=headers)).headers or {}) == {
        "x-mine",
        "outboxkit-attempt",
        "outboxkit-topic",
    }


@pytest.mark.parametrize(
    ("found", "attempt"), [(None, 1), (1, 1), (7, 7), (0, 1), (-3, 1), ("9", 1), (2.5, 1), (b"9", 1)]
)
def test_an_attempt_is_at_least_the_first(found: object, attempt: int):
    assert wire.attempt_of(foreign(headers={"outboxkit-attempt": found})) == attempt


def test_the_next_attempt_keeps_everything_but_what_would_lose_it():
    first = foreign(
        priority=5, reply_to="q", expiration="60000", user_id="guest", app_id="shop", delivery_mode=1, headers={"a": 1}
    )
    again = wire.as_next_attempt(first)
    assert (again.priority, again.reply_to, again.app_id) == (5, "q", "shop")
    assert (again.delivery_mode, again.expiration, again.user_id) == (2, None, None)
    assert again.headers == {"a": 1, "outboxkit-attempt": 2, "outboxkit-topic": "OrderConfirmed"}


@given(st.datetimes(timezones=st.just(UTC)), HEADERS)
def test_every_message_can_be_written(made: datetime, headers: dict[str, Any]):
    published(message(created_at=made, headers=headers))


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        bytearray(b"\xff"),
        {"deep": {"deeper": b"\xff"}},
        [b"\xff", [b"\xff"], {"a": b"\xff"}],
        Decimal("42949672.95"),
        NOW,
        1.5,
        2**63 - 1,
        "x" * 1000,
        None,
    ],
    ids=str,
)
def test_whatever_header_a_client_set_can_be_written_again(value: object):
    again = over_the_wire(wire.as_next_attempt(foreign(headers={"a": value})))
    assert again.headers is not None
    assert again.headers["outboxkit-attempt"] == 2
    found = again.headers["a"]
    assert found == value or str(value) in str(found) or "\\xff" in str(found)


def test_a_topic_is_remembered_through_all_attempts():
    arrived = delivered(Basic.Properties(message_id="m", message_type="T"), routing_key="orders.eu")
    for _ in range(3):
        arrived = delivered(wire.as_next_attempt(arrived), routing_key="billing.retry.1s")
        found = wire.to_message(arrived)
        assert isinstance(found, Message)
        assert found.topic == "orders.eu"
