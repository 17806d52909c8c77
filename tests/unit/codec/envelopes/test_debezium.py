"""Rows of an outbox that Debezium publishes."""

import json

import pytest

from outboxkit import DecodeError, ids
from outboxkit.codec.envelopes import DebeziumOutbox, Envelope
from tests.unit.codec.envelopes import samples
from tests.unit.codec.envelopes.samples import BODY, EVENT, ROW_ID, row

SCHEMA = {"type": "string", "optional": False}


def converted(value: object) -> str:
    """A value as the JSON converter writes it with its schema."""
    return json.dumps({"schema": SCHEMA, "payload": value})


@pytest.mark.parametrize("write", [str, json.dumps, converted, lambda value: value.encode() if value else value])
def test_headers_of_each_converter(write):
    headers = {"id": write(ROW_ID), "eventType": write("OrderPlaced"), "aggregateId": write("order-7")}
    found = DebeziumOutbox({"OrderPlaced": "OrderConfirmed"})(row(**headers))
    assert found is not None
    assert (found.id, found.type, found.key) == (ROW_ID, "OrderConfirmed", "order-7")
    assert (json.loads(found.payload), dict(found.headers)) == (EVENT, {})


@pytest.mark.parametrize(
    "body",
    [
        BODY,  # table.expand.json.payload=true, or a payload of bytes
        json.dumps(BODY.decode()).encode(),  # a payload of text
        converted(BODY.decode()).encode(),
        json.dumps({"schema": {"type": "struct"}, "payload": EVENT}).encode(),
    ],
)
def test_bodies_of_each_converter(body: bytes):
    assert json.loads(DebeziumOutbox()(row(body)).payload) == EVENT  # type: ignore[union-attr]


def test_a_payload_of_ones_own_that_has_a_schema_stays():
    for body in (b'{"schema": null, "payload": 1}', b'{"schema": 1}'):
        assert DebeziumOutbox()(row(body)).payload == body  # type: ignore[union-attr]


def test_without_a_header_the_routing_key_is_the_type():
    found = DebeziumOutbox({"outbox.event.Order": "OrderChanged"})(row(other="x"))
    assert found is not None
    assert (found.type, found.key, dict(found.headers)) == ("OrderChanged", None, {"other": "x"})
    with pytest.raises(DecodeError, match="header 'eventType' is missing"):
        DebeziumOutbox()(row(routing_key=""))
    with pytest.raises(DecodeError, match="header 'id' is missing"):
        DebeziumOutbox()(row(id=None))


def test_a_number_is_unique_in_its_table_only():
    one, other = (DebeziumOutbox()(row(id=7, routing_key=name)) for name in ("orders", "bills"))
    assert one is not None
    assert other is not None
    assert (one.id, one.id == other.id) == (ids.derive("debezium", "orders", "7"), False)


def test_a_long_number_is_no_uuid():
    number = "12345678123456781234567812345678"
    found = DebeziumOutbox()(row(id=number, routing_key="orders"))
    assert found is not None
    assert found.id == ids.derive("debezium", "orders", number)


def test_what_is_no_such_row_is_left_to_others():
    strangers = (samples.KNATIVE, samples.task(), samples.sent(), Envelope(b"", headers={"id": "1"}, message_id="1"))
    assert [DebeziumOutbox()(envelope) for envelope in strangers] == [None] * 4


@pytest.mark.parametrize("text", ['"order', "{order}", '{"schema": 1'])
def test_a_header_that_only_looks_like_json_is_a_text(text: str):
    found = DebeziumOutbox()(row(aggregateId=text))
    assert found is not None
    assert found.key == text
