"""Messages of MassTransit."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outboxkit import DecodeError
from outboxkit.codec.envelopes import Envelope, MassTransit
from tests.unit.codec.envelopes import samples
from tests.unit.codec.envelopes.samples import EVENT, MASSTRANSIT_ID, SENT, URN, sent


def test_the_envelope_is_the_message():
    found = MassTransit({URN: "OrderConfirmed"})(sent(initiatorId="i"))
    assert found is not None
    assert (found.id, found.type, json.loads(found.payload)) == (MASSTRANSIT_ID, "OrderConfirmed", EVENT)
    assert (found.correlation_id, found.causation_id) == (SENT["conversationId"], "i")
    assert found.created_at == datetime(2026, 3, 1, 12, 0, 0, 369538, tzinfo=UTC)
    assert found.headers["traceparent"] == "00-4fea208c5599cbeedeac543443352c94-08958af1777c0ed2-01"
    assert found.headers["mt-correlation-id"] == SENT["correlationId"]
    assert (found.content_type, found.content_encoding) == ("application/json", None)


def test_the_first_type_that_has_a_name_here_counts():
    assert MassTransit()(sent()).type == URN  # type: ignore[union-attr]
    assert MassTransit({"urn:message:Shop.Contracts:IOrderEvent": "Order"})(sent()).type == "Order"  # type: ignore[union-attr]


def test_without_an_id_in_the_envelope_the_property_counts():
    assert MassTransit()(sent(messageId="another")).id == "another"  # type: ignore[union-attr]
    assert MassTransit()(sent(messageId=None)).id == MASSTRANSIT_ID  # type: ignore[union-attr]
    with pytest.raises(DecodeError, match="it has no messageId"):
        MassTransit()(replace(sent(messageId=None), message_id=None))


def test_headers_may_be_missing():
    found = MassTransit()(sent(headers=None, sentTime=None, correlationId=None, conversationId=None))
    assert found is not None
    assert set(found.headers) == {"mt-source-address"}
    assert (found.correlation_id, found.created_at) == (SENT["correlationId"], None)


def test_what_is_no_such_envelope_is_left_to_others():
    for envelope in (samples.KNATIVE, samples.task(), samples.row(), Envelope(sent().body, content_type="text/json")):
        assert MassTransit()(envelope) is None


@pytest.mark.parametrize(
    ("envelope", "error"),
    [
        (sent(messageType=[]), "it has no messageType"),
        (sent(messageType="urn"), "not valid"),
        (sent(messageType=["u" * 20_000]), "at most 16384 are read"),
        (sent(headers={str(number): 1 for number in range(101)}), "at most 100"),
        (sent(headers={"h": "x" * 200_000}), "at most 120000 are read"),
        (sent(messageId=7), "not valid"),
        (replace(sent(), body=b"[]"), "not valid"),
        (replace(sent(), body=b"\xff"), "not valid"),
    ],
)
def test_what_is_not_valid_is_refused(envelope: Envelope, error: str):
    with pytest.raises(DecodeError, match=error):
        MassTransit()(envelope)
