"""What strangers and tracing libraries do to a trace: no message suffers from it."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit import Outcome, inbox, inbox_handler, outbox
from outboxkit.inbox import Entry, handler_of
from outboxkit.telemetry import tracing
from outboxkit.telemetry import tracing as spans_module
from outboxkit.telemetry.tracing import Endpoint
from tests.support.spans import REMOTE, Spans, links_of, parent_of
from tests.unit.shop import OrderConfirmed, message

LONG = ",".join(f"vendor{number}={'x' * 30}" for number in range(20))


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as made, made.begin():
        yield made


@inbox_handler("Work", batch=True)
def work(session: Session, event: OrderConfirmed) -> None:
    pass


@pytest.mark.parametrize(
    "header",
    [
        *(b"\xff", 5, None, "", "00", REMOTE.upper(), REMOTE + "-more", "ff" + REMOTE[2:], REMOTE * 1000),
        *("00-" + "0" * 32 + REMOTE[35:], REMOTE[:36] + "0" * 16 + "-01", " " + REMOTE, REMOTE + "\n"),
    ],
)
def test_a_context_that_is_none_begins_a_trace(spans: Spans, session: Session, header: object):
    sent = message(headers={"traceparent": header})
    inbox.run_once(session, sent, work)
    with tracing.sending([sent], Endpoint()), tracing.carrying(sent):
        pass
    assert (parent_of(spans.one("process")), links_of(spans.one("publish"))) == (None, [])


def test_a_later_version_is_read_as_far_as_it_is_known(spans: Spans, session: Session):
    inbox.run_once(session, message(headers={"traceparent": "01" + REMOTE[2:] + "-more"}), work)
    assert parent_of(spans.one("process")) == REMOTE


@pytest.mark.parametrize("state", [b"\xff", 5, "x" * 1_000_000, "", "=", ",,,", LONG])
def test_a_trace_state_that_is_none_is_left_out(spans: Spans, session: Session, state: object):
    inbox.run_once(session, message(headers={"traceparent": REMOTE, "tracestate": state}), work)
    found = spans.one("process").context
    assert found is not None
    assert not found.trace_state


def test_a_processor_that_raises_stops_no_message(spans: Spans, session: Session):
    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise ZeroDivisionError

        def on_end(self, span: ReadableSpan) -> None:
            raise ZeroDivisionError

    with spans.tracer.start_as_current_span("request"):
        spans.provider.add_span_processor(Broken())
        sent = outbox.add(session, OrderConfirmed(7, 1))
        assert inbox.run_once(session, sent, work) is Outcome.PROCESSED
        assert inbox.run_batch(session, [Entry.of(message(id="2"), handler_of(work))]) == ["processed"]
        with tracing.sending([sent], Endpoint()):
            pass
        spans.provider._active_span_processor._span_processors = ()


@pytest.mark.parametrize("lacks", ["the API", "an SDK"])
def test_without_an_sdk_or_the_api_nothing_is_done(lacks: str, session: Session, monkeypatch: pytest.MonkeyPatch):
    if lacks == "the API":
        monkeypatch.setattr(spans_module, "HAS_API", False)
        monkeypatch.setattr(tracing, "HAS_API", False)
    sent = message(headers={"traceparent": REMOTE, "tracestate": "vendor=x"})
    assert inbox.run_once(session, sent, work) is Outcome.PROCESSED
    assert inbox.run_batch(session, [Entry.of(message(id="2"), handler_of(work))]) == ["processed"]
    assert tracing.sending([sent], Endpoint()) is tracing.carrying(sent) is tracing.processing(sent, "Work")
    assert tracing.processing_batch([sent]) is tracing.processing(sent, "Work")
