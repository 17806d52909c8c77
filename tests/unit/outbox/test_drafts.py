"""What `outbox.add` makes of an event: the message's properties, where they come from, and what is refused."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, EncodeError, Message, event, ids, outbox, tables
from outboxkit.message import handling
from tests.unit.shop import NOW, Line, OrderConfirmed, message, rows

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ORDER = OrderConfirmed(7, Decimal("9.50"))
LATER = datetime.now(UTC) + timedelta(days=60)


def stored(session: Session, database_url: str) -> dict[str, Any]:
    session.commit()
    (row,) = rows(database_url, tables.outbox)
    return row


def test_the_row_is_the_message(session: Session, database_url: str):
    before = datetime.now(UTC)
    sent = outbox.add(
        session, ORDER, key="order-7", headers={"tenant": "a", "n": 1}, topic="orders.confirmed", correlation_id="c-1"
    )
    row = stored(session, database_url)
    assert row["payload"] == sent.payload
    assert json.loads(row["payload"])["total"] == "9.50"
    assert json.loads(row["headers"]) == {"tenant": "a", "n": 1} == dict(sent.headers)
    assert before <= row["created_at"] <= datetime.now(UTC)
    same = ["type", "key", "topic", "correlation_id", "causation_id", "created_at", "content_type", "content_encoding"]
    assert {name: row[name] for name in same} == {name: getattr(sent, name) for name in same}
    assert row["message_id"] == sent.id
    assert (row["attempts"], row["last_error"], row["due_at"]) == (0, None, None)


def test_a_later_delivery_is_due_then_and_not_old_by_then(session: Session, database_url: str):
    sent = outbox.add(session, ORDER, deliver_at=LATER)
    made = ids.time_of(sent.id)
    assert made is not None
    assert abs(made - LATER) < timedelta(seconds=1)
    assert stored(session, database_url)["due_at"] == LATER


@pytest.mark.parametrize("event", [ORDER, Message(id="m-1", type="T", payload=b"{}")])
def test_a_later_delivery_with_an_id_of_its_own_is_not_old_by_then(session: Session, event: object):
    sent = outbox.add(session, event, message_id=ids.derive("order", 7), deliver_at=LATER)
    assert sent.created_at is not None
    assert sent.created_at >= LATER


@pytest.mark.parametrize("past", [datetime(1960, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_moment_in_the_past_is_due_at_once_and_the_message_is_new(session: Session, past: datetime):
    sent = outbox.add(session, ORDER, deliver_at=past)
    made = ids.time_of(sent.id)
    assert made is not None
    assert sent.created_at is not None
    for moment in (made, sent.created_at):
        assert abs(moment - datetime.now(UTC)) < timedelta(days=1)


@event("OrderMoved", strict_order=True, unroutable="discard")
@dataclass(frozen=True)
class OrderMoved:
    order_id: int


def test_an_event_of_strict_order_needs_a_key(session: Session):
    with pytest.raises(EncodeError, match="OrderMoved is an event of strict_order, which needs a key; give key="):
        outbox.add(session, OrderMoved(7))
    assert not session.new
    assert outbox.add(session, OrderMoved(7), key="order-7").key == "order-7"


def test_what_may_be_discarded_says_so_in_its_row(session: Session, database_url: str):
    outbox.add(session, OrderMoved(7), key="order-7")
    outbox.add(session, ORDER)
    outbox.add(session, message(type="OrderMoved"))
    session.commit()
    assert [row["discard_unroutable"] for row in rows(database_url, tables.outbox)] == [True, False, False]


def test_a_message_of_ones_own_is_sent_as_it_is(session: Session, database_url: str):
    given = message(
        id="m-9",
        type="Other",
        payload=b"\x00\xff",
        key="k",
        topic="t",
        headers={"a": 1},
        correlation_id="c",
        causation_id="d",
        content_type="application/x-protobuf",
        content_encoding="gzip",
        version=2,
    )
    assert outbox.add(session, given) == given
    row = stored(session, database_url)
    assert (row["message_id"], row["type"], row["payload"], row["created_at"]) == ("m-9", "Other", b"\x00\xff", NOW)
    assert (row["content_type"], row["content_encoding"], row["version"]) == ("application/x-protobuf", "gzip", 2)


def test_arguments_win_over_the_message(session: Session):
    given = message(key="old", topic="old", headers={"old": 1}, correlation_id="old")
    sent = outbox.add(
        session, given, key="new", topic="new", headers={"new": 1}, correlation_id="new", message_id="m-new"
    )
    assert (sent.id, sent.key, sent.topic, dict(sent.headers), sent.correlation_id) == (
        "m-new",
        "new",
        "new",
        {"new": 1},
        "new",
    )
    assert (sent.type, sent.payload) == (given.type, given.payload)


def test_a_message_added_in_a_handler_knows_its_cause(session: Session):
    cause = message(
        id="cause",
        correlation_id="story",
        headers={
            "traceparent": TRACE,
            "tracestate": "x=1",
            "own": 1,
        },
    )
    with handling(cause):
        sent = outbox.add(session, ORDER, headers={"mine": 2})
    assert (sent.correlation_id, sent.causation_id) == ("story", "cause")
    assert dict(sent.headers) == {
        "traceparent": TRACE,
        "tracestate": "x=1",
        "mine": 2,
    }


@dataclass(frozen=True)
class Special(OrderConfirmed):
    """A subclass of an event."""


@pytest.mark.parametrize(
    ("event", "error", "reason"),
    [
        (Line("a", Decimal(1)), ConfigurationError, 'Line is not an event: decorate it with @event\\("Line"\\)'),
        ({"order_id": 7}, ConfigurationError, "^a dict is not an event; make a class for it, such as a dataclass"),
        (7, ConfigurationError, "^an int is not an event; make a class"),
        ([ORDER], ConfigurationError, "^a list is not an event: outbox.add_all takes several events$"),
        ([], ConfigurationError, "^a list is not an event; make a class"),
        (None, ConfigurationError, "^None is not an event"),
        (
            OrderConfirmed,
            ConfigurationError,
            r"^OrderConfirmed is the class: pass an instance, as in OrderConfirmed\(...\)$",
        ),
        (
            Special(7, Decimal(1)),
            ConfigurationError,
            r"Special is not an event.* the @event of OrderConfirmed is not inherited",
        ),
        (OrderConfirmed(7, object()), EncodeError, "OrderConfirmed cannot be encoded"),
    ],
)
def test_what_is_no_event_is_refused_at_once(session: Session, event: object, error: type[Exception], reason: str):
    with pytest.raises(error, match=reason):
        outbox.add(session, event)
    assert not session.new


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "x" * 256},
        {"key": 7},
        {"topic": "a\0b"},
        {"message_id": ""},
        {"message_id": UUID(int=1)},
        {"correlation_id": "\ud800"},
        {"headers": {"outboxkit-key": "x"}},
        {"headers": {"a": object()}},
        {"headers": {"a": "\ud800"}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_argument_that_cannot_be_sent_is_refused_at_once(session: Session, wrong: dict[str, Any]):
    with pytest.raises(EncodeError):
        outbox.add(session, ORDER, **wrong)
    assert not session.new


@pytest.mark.parametrize("event", [ORDER, message()])
def test_the_largest_payload_is_a_setting(session: Session, database_url: str, event: object):
    size = len(outbox.add(session, event).payload)
    outbox.add(session, event, max_payload_bytes=size)
    with pytest.raises(EncodeError, match=rf"{size} bytes long.* at most {size - 1} .*max_payload_bytes"):
        outbox.add(session, event, max_payload_bytes=size - 1)
    with pytest.raises(EncodeError, match="max_payload_bytes"):
        outbox.add_all(session, [event], max_payload_bytes=size - 1)
    session.commit()
    assert len(rows(database_url, tables.outbox)) == 2


@pytest.mark.parametrize("limit", ["", 0, -1, "1MiB", 1.5, True])
def test_a_bad_limit_is_named(session: Session, limit: Any):
    with pytest.raises(ConfigurationError, match=f"max_payload_bytes is {limit!r}; .*bytes") as raised:
        outbox.add(session, ORDER, max_payload_bytes=limit)
    assert len(str(raised.value).splitlines()) == 1


@event("OrderTaken", version=3, aliases=("OrderOpened",))
@dataclass
class OrderTaken:
    number: int


def test_the_version_of_the_class_is_the_messages(session: Session, database_url: str):
    """A producer needs no upcasts: it reads no older messages."""
    sent = outbox.add(session, OrderTaken(7))
    assert (sent.type, sent.version) == ("OrderTaken", 3)
    row = stored(session, database_url)
    assert (row["type"], row["version"], row["payload"]) == ("OrderTaken", 3, b'{"number":7}')
