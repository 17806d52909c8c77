"""CloudEvents: what other publishers send, and what the relay writes."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import DecodeError, Message, ids
from outboxkit.codec import payloads
from outboxkit.codec.compression import deflate
from outboxkit.codec.envelopes import CloudEvents, Envelope
from outboxkit.codec.envelopes.cloudevents import as_cloud_event
from outboxkit.errors import EncodeError
from tests.unit.codec.envelopes import samples
from tests.unit.shop import message

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TYPES = {"com.example.order.confirmed": "OrderConfirmed"}


def read(envelope: Envelope) -> Message:
    found = CloudEvents(TYPES)(envelope)
    assert found is not None
    return found


@pytest.mark.parametrize("envelope", samples.ALL)
def test_each_publishers_form_is_one_message(envelope: Envelope):
    found = read(envelope)
    assert json.loads(found.payload) == samples.EVENT
    assert (found.id, found.type) == (ids.derive("cloudevents", "/shop", "A-1"), "OrderConfirmed")
    assert (found.created_at, found.headers["ce-source"]) == (NOON, "/shop")
    assert not any("specversion" in name.lower() for name in found.headers)


def test_what_is_beside_the_event_is_kept():
    found = read(samples.DAPR)
    assert found.headers["traceparent"] == found.headers["ce-traceid"]
    assert found.headers["ce-topic"] == "orders"
    extended = {"ce-subject": "7", "ce-partitionkey": "order-7", "ce-correlationid": "c", "ce-causationid": "d", "x": 1}
    found = read(replace(samples.KNATIVE, headers={**samples.KNATIVE.headers, **extended}, routing_key="r"))
    assert (found.key, found.topic, found.correlation_id, found.causation_id) == ("order-7", "r", "c", "d")
    assert dict(found.headers) == {"ce-source": "/shop", "ce-subject": "7", "x": 1}


def test_only_source_and_id_together_are_unique():
    other = {**samples.KNATIVE.headers, "ce-source": "/till"}
    assert read(samples.KNATIVE).id != read(replace(samples.KNATIVE, headers=other)).id
    long = {**samples.KNATIVE.headers, "ce-id": "i" * 10_000}
    assert len(read(replace(samples.KNATIVE, headers=long)).id) == 36


def test_what_is_no_cloud_event_is_left_to_others():
    for envelope in (Envelope(samples.BODY), Envelope(b'{"specversion": 1}', type="Mine")):
        assert CloudEvents()(envelope) is None
    assert CloudEvents()(Envelope(b"{}", headers={"ce-id": "1"})) is None


def document(**more: Any) -> Envelope:
    whole = samples.ATTRIBUTES | {"data": samples.EVENT} | more
    return replace(samples.STRUCTURED, body=json.dumps({k: v for k, v in whole.items() if v is not ...}).encode())


@pytest.mark.parametrize(
    ("envelope", "error"),
    [
        (document(id=None), "Expected `str`, got `null`"),
        (document(id=7), "Expected `str`, got `int`"),
        (document(id=...), "missing required field `id`"),
        (document(id=""), "its id is ''"),
        (document(specversion="0.3"), "its specversion is '0.3'"),
        (document(data=..., data_base64="?"), "data_base64 is not base64"),
        (document(partitionkey=7), "message key is 7"),
        (document(partitionkey="k" * 256), "message key is 256 bytes long"),
        (document(type="t" * 256), "message type is 256 bytes long"),
        (document(**{f"x{number}": 1 for number in range(101)}), "has 10. headers; at most 100"),
        (document(x="x" * 120_001), "its attributes have 120"),
        (replace(samples.STRUCTURED, content_type="application/cloudevents-batch+json"), "batch"),
        (replace(samples.STRUCTURED, body=b"{"), "the envelope is not valid"),
        (replace(samples.STRUCTURED, content_encoding="br"), "br-encoded"),
        (replace(samples.KNATIVE, headers={**samples.KNATIVE.headers, "ce-id": 7}), "its id is '7'"),
        (replace(samples.KNATIVE, headers={**samples.KNATIVE.headers, "ce-source": b"\xff"}), "its source is"),
        (replace(samples.KNATIVE, headers={"ce-specversion": 1.0}), "its specversion is 1.0"),
    ],
)
def test_what_breaks_the_specification_or_a_limit_is_refused(envelope: Envelope, error: str):
    with pytest.raises((DecodeError, EncodeError), match=error):
        CloudEvents()(envelope)


@pytest.mark.parametrize(
    ("more", "payload"),
    [
        ({"data": {"total": 19.900000000000000001}}, None),
        ({"data": ...}, b"{}"),
        ({"data": None}, b"null"),
        ({"data": ..., "data_base64": "e30="}, b"{}"),
        ({"datacontenttype": "text/xml", "data": "<é/>"}, "<é/>".encode()),
        ({"datacontenttype": "application/json", "data": "text"}, b'"text"'),
    ],
)
def test_data_in_each_form(more: dict[str, Any], payload: bytes | None):
    envelope = document(**more)
    found = read(envelope)
    assert found.payload == (payload or json.dumps(more["data"]).encode())


def test_a_compressed_document_and_a_compressed_event():
    envelope = replace(samples.STRUCTURED, body=deflate(samples.STRUCTURED.body, "gzip"), content_encoding="gzip")
    assert (read(envelope).content_encoding, json.loads(read(envelope).payload)) == (None, samples.EVENT)
    envelope = replace(samples.KNATIVE, body=deflate(samples.BODY, "gzip"), content_encoding="gzip")
    assert payloads.plain_payload(read(envelope).payload, read(envelope).content_encoding) == samples.BODY


@pytest.mark.parametrize(
    "time", ["soon", "2026-03-01T12:00:00", "9999-12-31T23:59:59Z", "1" * 100, True, 1.5, 2**80, -(2**63)]
)
def test_a_time_that_is_no_moment_is_left_out(time: Any):
    envelope = replace(samples.KNATIVE, headers={**samples.KNATIVE.headers, "ce-time": time}, timestamp=NOON)
    assert read(envelope).created_at == NOON


def arrived(sent: Message) -> Envelope:
    """The envelope of a message that the relay has written."""
    return Envelope(
        body=sent.payload,
        headers=sent.headers,
        routing_key=sent.routing_key,
        message_id=sent.id,
        type=sent.type,
        content_type=sent.content_type,
        content_encoding=sent.content_encoding,
        correlation_id=sent.correlation_id,
    )


SENT = message(
    key="order-7",
    topic="orders",
    headers={"tenant": "a", "traceparent": "00-113ad9c4e42b27583ae98ba698d54255-e3743e35ff56f219-01"},
    correlation_id="c",
    causation_id="d",
    version=3,
    created_at=datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC),
)


def test_what_the_relay_writes_is_read_as_the_same_message():
    written = as_cloud_event(SENT, "/shop")
    found = CloudEvents()(arrived(written))
    assert found == replace(SENT, headers={**SENT.headers, "ce-source": "/shop"})
    assert dict(found.headers) == {**SENT.headers, "ce-source": "/shop"}


@given(payload=st.binary(max_size=50) | st.just(b'{"a": 1}'), content_type=st.sampled_from(["application/json", "x/y"]))
def test_any_payload_comes_back(payload: bytes, content_type: str):
    sent = message(payload=payload or b"{}", content_type=content_type)
    found = CloudEvents()(arrived(as_cloud_event(sent, "/shop")))
    assert found is not None
    assert (found.payload, found.content_type, found.id) == (sent.payload, content_type, sent.id)


def test_a_compressed_payload_stays_compressed():
    sent = message(payload=deflate(samples.BODY, "gzip"), content_encoding="gzip")
    written = as_cloud_event(sent, "/shop")
    assert written.content_encoding == "gzip"
    found = CloudEvents()(arrived(written))
    assert found is not None
    assert payloads.plain_payload(found.payload, found.content_encoding) == samples.BODY


def test_a_message_for_one_queue_stays_as_it_is():
    addressed = replace(SENT, queue="billing")
    assert as_cloud_event(addressed, "/shop") is addressed


def test_the_version_of_a_strangers_event_is_not_ours():
    headers = {**samples.KNATIVE.headers, "ce-dataversion": "2.0"}
    found = read(replace(samples.KNATIVE, headers=headers))
    assert (found.version, found.headers["ce-dataversion"]) == (1, "2.0")
    written = as_cloud_event(SENT, "/shop")
    for version in ("x", "0", "9999999999", 3):
        with pytest.raises((DecodeError, EncodeError), match="version is"):
            CloudEvents()(replace(arrived(written), headers={**written.headers, "cloudEvents_dataversion": version}))


def test_an_id_of_ours_is_ours_only_while_nobody_changed_it():
    written = as_cloud_event(SENT, "/shop")
    changed = {**written.headers, "cloudEvents_id": "another"}
    assert CloudEvents()(replace(arrived(written), headers=changed)).id == ids.derive("cloudevents", "/shop", "another")  # type: ignore[union-attr]
