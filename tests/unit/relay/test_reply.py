"""Replies: what an answer becomes, whatever it says."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import ids
from outboxkit.brokers import Answer
from outboxkit.codec.rows import to_row
from outboxkit.message import FIELDS, Message
from outboxkit.relay.decisions import Reply, reply_to
from outboxkit.relay.order import ClaimedRow
from tests.unit.shop import NOW, message

LATER = NOW + timedelta(minutes=1)


def replied(answer: Answer | None = None, **more: object) -> Reply:
    return reply_to(ClaimedRow(7, 3, message(**more), reply="CardCharged"), "CardCharged", answer, now=LATER)


def test_a_reply_is_caused_by_its_message_and_part_of_its_story():
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "x=1"}
    found = replied(
        Answer(b'{"ok":true}', "application/json; charset=utf-8"),
        id="m-7",
        key="order-7",
        topic="t",
        correlation_id="c-1",
        causation_id="m-6",
        content_encoding="gzip",
        queue="billing",
        version=3,
        headers={**trace, "tenant": "a"},
    )
    assert found == Reply(
        7,
        Message(
            id=ids.derive("reply", "m-7"),
            type="CardCharged",
            payload=b'{"ok":true}',
            key="order-7",
            headers=trace,
            correlation_id="c-1",
            causation_id="m-7",
            created_at=LATER,
            content_type="application/json; charset=utf-8",
        ),
    )


@pytest.mark.parametrize("answer", [None, Answer(b""), Answer(b"", "")])
def test_an_empty_answer_is_an_event_without_fields(answer: Answer | None):
    found = replied(answer).message
    assert (found.payload, found.content_type) == (b"{}", "application/json")


@given(st.binary(max_size=50), st.text(max_size=400) | st.text("é\0\ud800", min_size=200, max_size=300))
def test_whatever_is_said_can_be_stored_and_sent(payload: bytes, content_type: str):
    found = replied(Answer(payload, content_type)).message
    assert Message(*(getattr(found, name) for name in FIELDS)).content_type
    assert found.payload == (payload or b"{}")


@pytest.mark.parametrize("broken", [{"traceparent": "a" * 120_000}, {"tracestate": "a" * 120_000}])
def test_a_trace_context_that_is_none_is_not_passed_on(broken: dict[str, str]):
    """As a row its headers would be too long: the settlement would fail, and end the relay."""
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "x=1"}
    row = ClaimedRow(7, 0, message(headers=trace | broken))
    assert to_row(reply_to(row, "CardCharged", None, now=LATER).message)
