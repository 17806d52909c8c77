"""Messages as AMQP properties and back: what other languages see, and what they may send."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from outboxkit import Message
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq import decode as decoding
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.brokers.rabbitmq.encode import Encoder
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.headers import OWN
from outboxkit.message import MAX_VERSION

NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
HEADERS = st.dictionaries(
    NAMES.map(lambda name: name[:32]).filter(lambda name: not name.startswith((OWN, *decode.BROKERS_OWN))),
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
    version=st.just(1) | st.integers(1, MAX_VERSION),
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


def over_the_wire(properties: Basic.Properties) -> Properties:
    """The properties as they arrive: through their binary form."""
    written = properties.marshal()
    return decoding.read_properties(int.from_bytes(written[:2]), written[2:])


def foreign(headers: dict[str, Any] | None = None, **given: Any) -> Properties:
    """What a plain client set; its headers are any that a client may write, also those that pamqp cannot."""
    found = over_the_wire(Basic.Properties(**({"message_id": "m-1", "message_type": "OrderConfirmed"} | given)))
    found.headers = headers
    return found


def read(found: Properties, body: bytes = b"{}", topic: str = "OrderConfirmed") -> Message | Malformed:
    return decode.to_message(found, body, decode.topic_of(found, topic))


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(sent: Message):
    assert read(over_the_wire(published(sent)), sent.payload, sent.routing_key) == sent


def test_a_plain_client_needs_an_id_and_a_type_only():
    found = read(foreign())
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
    found = read(foreign(**{missing: value, "headers": {"a": 1}, "correlation_id": "c", "content_type": "x/y"}))
    assert isinstance(found, Malformed)
    assert (found.reason, found.body, dict(found.headers)) == (reason, b"{}", {"a": 1})
    assert (found.correlation_id, found.content_type) == ("c", "x/y")
    known = {"message_id": found.message_id, "message_type": found.type}
    assert known.pop(missing) is None
    assert all(known.values())


def test_what_postgresql_cannot_store_is_malformed():
    found = read(foreign(message_id="a\0b"))
    assert isinstance(found, Malformed)
    assert "NUL" in found.reason


@pytest.mark.parametrize("value", [1, b"\xff", {"a": 1}, ["a"], None, True])
def test_headers_of_our_names_that_are_no_text_are_passed_over(value: object):
    found = read(foreign(headers={"outboxkit-key": value, "outboxkit-causation-id": value, "outboxkit-topic": value}))
    assert isinstance(found, Message)
    assert (found.key, found.causation_id, dict(found.headers)) == (None, None, {})
    assert found.topic == "OrderConfirmed"


def test_the_brokers_own_headers_are_not_the_messages():
    headers = {"x-death": [{"count": 1}], "x-delivery-count": 3, "x-first-death-queue": "q", "x-mine": 1}
    found = read(foreign(headers=headers))
    assert isinstance(found, Message)
    assert dict(found.headers) == {"x-mine": 1}


@pytest.mark.parametrize("own", ["outboxkit-attempt", "outboxkit-anything", "outboxkit-queue"])
def test_no_reserved_header_is_the_messages(own: str):
    for found in (
        read(foreign(headers={own: "x", "a": 1})),
        read(foreign(message_id=None, headers={own: "x", "a": 1})),
    ):
        assert dict(found.headers) == {"a": 1}


@pytest.mark.parametrize(
    ("count", "redelivered", "returned"),
    [(None, False, 0), (None, True, 1), (3, True, 3), (0, True, 1), (-1, False, 0), ("9", True, 1), (True, True, 1)],
)
def test_it_came_back_as_often_as_the_broker_counts_and_once_if_it_was_there_before(
    count: object, redelivered: bool, returned: int
):
    headers = {} if count is None else {"x-delivery-count": count}
    assert decode.redeliveries(foreign(headers=headers), redelivered=redelivered) == returned


DEATHS = [{"queue": "q.retry.1s", "routing-keys": ["q.retry.1s"]}, {"queue": "q", "routing-keys": ["orders.eu", "cc"]}]


@pytest.mark.parametrize(
    ("headers", "dropped", "topic"),
    [
        ({}, True, "arrived"),
        ({"x-death": DEATHS}, True, "orders.eu"),
        ({"x-death": DEATHS}, False, "arrived"),
        ({"x-death": DEATHS, "outboxkit-topic": "first"}, True, "first"),
        ({"x-death": []}, True, "arrived"),
        ({"x-death": "none"}, True, "arrived"),
        ({"x-death": [{"routing-keys": [7]}]}, True, "arrived"),
    ],
)
def test_the_first_topic_of_a_dropped_message_is_what_the_broker_noted(headers: Any, dropped: bool, topic: str):
    assert decode.topic_of(foreign(headers=headers), "arrived", dropped=dropped) == topic


def test_what_cannot_be_read_is_malformed_with_what_could():
    found = foreign(headers={"a": 1}, correlation_id="c")
    found.unreadable = "its timestamp cannot be read"
    message_ = read(found)
    assert isinstance(message_, Malformed)
    assert (message_.reason, message_.message_id, message_.type) == (found.unreadable, "m-1", "OrderConfirmed")
    assert (message_.body, dict(message_.headers), message_.correlation_id) == (b"{}", {"a": 1}, "c")


@pytest.mark.parametrize("value", [0, -1, 2**31, True, 1.0, "", "two", "1" * 11, "٣" * 12, None, [1], {"a": 1}])
def test_a_version_that_is_none_is_malformed(value: object):
    found = read(Properties(message_id="m", message_type="T", headers={"outboxkit-version": value}))
    assert isinstance(found, Malformed)
    assert found.reason.startswith("its header outboxkit-version is ")
    assert found.reason.endswith("; a whole number from 1 is accepted")
    assert found.headers == {"outboxkit-version": value}
