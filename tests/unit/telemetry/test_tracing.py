"""The spans of a message that is added, published and handled: parents, links, attributes, and what they never show.

What strangers and tracing libraries do to a trace makes no message suffer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags
from sqlalchemy import Engine, insert, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, Retry, inbox, inbox_handler, outbox
from outboxkit.inbox import BatchEntryFailed, Entry, handler_of
from outboxkit.message import handling
from outboxkit.telemetry import tracing
from outboxkit.telemetry.tracing import MOST_LINKS, Endpoint
from tests.support.spans import REMOTE, UNSAMPLED, Spans, header_of, links_of, parent_of, recording
from tests.unit.shop import OrderConfirmed, StockChanged, effects, message

STOCK = StockChanged("red-7", 1)
LONG = ",".join(f"vendor{number}={'x' * 30}" for number in range(20))
CONTEXT = SpanContext(0x113AD9C4E42B27583AE98BA698D54255, 0xE3743E35FF56F219, is_remote=True)
SECRET = "4111-1111-1111-1111"


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as made, made.begin():
        yield made


@inbox_handler("Work", batch=True)
def work(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what="done"))
    outbox.add(session, STOCK)


def raising(error: BaseException) -> Callable[..., None]:
    @inbox_handler("Raises", batch=True)
    def raises(session: Session, event: OrderConfirmed) -> None:
        raise error

    return raises


def entries(*messages: Message) -> list[Entry]:
    return [Entry.of(each, handler_of(work)) for each in messages]


class TestAdded:
    def test_in_a_trace_it_has_a_span_whose_context_travels(self, spans: Spans, session: Session):
        with spans.tracer.start_as_current_span("request"):
            sent = outbox.add(
                session, STOCK, key="k", headers={"tenant": "a"}, correlation_id="story", topic="stock.red"
            )
        request, create = spans.one("request"), spans.one("create StockChanged")
        assert parent_of(create) == header_of(request)
        assert dict(sent.headers) == {"tenant": "a", "traceparent": header_of(create)}
        assert create.kind is SpanKind.PRODUCER
        assert dict(create.attributes or {}) == {
            "messaging.system": "outboxkit",
            "messaging.operation.name": "create",
            "messaging.operation.type": "create",
            "messaging.destination.name": "stock.red",
            "messaging.message.id": sent.id,
            "messaging.message.conversation_id": "story",
            "outboxkit.type": "StockChanged",
            "outboxkit.destination": "default",
        }

    def test_every_message_of_a_call_has_one_of_its_own(self, spans: Spans, session: Session):
        with spans.tracer.start_as_current_span("request"):
            sent = outbox.add_all(session, [STOCK, STOCK])
        assert [each.headers["traceparent"] for each in sent] == list(
            map(header_of, spans.named("create StockChanged"))
        )

    def test_a_context_that_the_caller_gives_stays(self, spans: Spans, session: Session):
        with spans.tracer.start_as_current_span("request"):
            given = outbox.add(session, STOCK, headers={"traceparent": REMOTE})
            made = outbox.add(session, message(headers={"traceparent": REMOTE}))
        assert (given.headers, made.headers) == ({"traceparent": REMOTE}, {"traceparent": REMOTE})
        assert spans.names() == ["request"]

    def test_outside_a_trace_there_is_nothing(self, spans: Spans, session: Session):
        assert dict(outbox.add(session, STOCK).headers) == {}
        assert spans.all() == []

    def test_what_is_not_sampled_is_passed_on_without_a_span(self, session: Session):
        with recording(ALWAYS_OFF) as spans, spans.tracer.start_as_current_span("request") as current:
            sent = outbox.add(session, STOCK)
            found = current.get_span_context()
        flags = f"{found.trace_flags:02x}"
        assert sent.headers["traceparent"] == f"00-{found.trace_id:032x}-{found.span_id:016x}-{flags}"
        assert not found.trace_flags.sampled
        assert spans.all() == []

    def test_without_an_sdk_the_context_of_a_request_is_passed_on(self, session: Session):
        state = trace.TraceState([("vendor", "x")])
        remote = SpanContext(CONTEXT.trace_id, CONTEXT.span_id, True, TraceFlags(1), state)
        with trace.use_span(NonRecordingSpan(remote)):
            sent = outbox.add(session, STOCK)
        assert dict(sent.headers) == {"traceparent": REMOTE, "tracestate": "vendor=x"}

    def test_its_trace_state_travels_and_its_baggage_stays(self, spans: Spans, session: Session):
        with tracing.processing(message(headers={"traceparent": REMOTE, "tracestate": "vendor=x"}), "Work"):
            token = context.attach(baggage.set_baggage("password", SECRET))
            sent = outbox.add(session, STOCK)
            context.detach(token)
        assert set(sent.headers) == {"traceparent", "tracestate"}
        assert sent.headers["tracestate"] == "vendor=x"

    def test_what_a_handler_adds_in_no_span_has_the_context_of_its_cause(self, session: Session):
        cause = message(headers={"traceparent": REMOTE})
        with handling(cause), recording(ALWAYS_OFF) as spans, spans.tracer.start_as_current_span("other"):
            assert outbox.add(session, STOCK).headers["traceparent"] == REMOTE


class TestHandled:
    def test_it_continues_the_trace_of_the_message(self, spans: Spans, session: Session):
        cause = message(headers={"traceparent": REMOTE}, correlation_id="story")
        assert inbox.run_once(session, cause, work) is Outcome.PROCESSED
        process, create = spans.one("process"), spans.one("create StockChanged")
        assert (parent_of(process), links_of(process), process.kind) == (REMOTE, [], SpanKind.CONSUMER)
        assert dict(process.attributes or {}) == {
            "messaging.system": "outboxkit",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": "m-1",
            "messaging.message.conversation_id": "story",
            "outboxkit.type": "OrderConfirmed",
            "outboxkit.handler": "Work",
            "outboxkit.attempt": 1,
            "outboxkit.outcome": "processed",
        }
        assert parent_of(create) == header_of(process)
        assert (create.attributes or {})["outboxkit.causation_id"] == "m-1"
        assert inbox.run_once(session, cause, work) is Outcome.DUPLICATE
        assert (spans.named("process")[1].attributes or {})["outboxkit.outcome"] == "duplicate"

    def test_a_message_without_a_context_begins_a_trace(self, spans: Spans, session: Session):
        inbox.run_once(session, message(), work)
        assert (parent_of(spans.one("process")), links_of(spans.one("process"))) == (None, [])

    def test_in_the_span_of_a_request_that_brought_it_it_is_its_child(self, spans: Spans, session: Session):
        with spans.tracer.start_as_current_span("request"):
            sent = outbox.add(session, OrderConfirmed(7, 1))
        with tracing.carrying(sent), spans.tracer.start_as_current_span("webhook"):
            inbox.run_once(session, sent, work, attempt=2)
        assert parent_of(spans.one("process")) == header_of(spans.one("webhook"))

    def test_a_span_of_another_trace_is_linked(self, spans: Spans, session: Session):
        with spans.tracer.start_as_current_span("main"):
            inbox.run_once(session, message(headers={"traceparent": REMOTE}), work)
        assert parent_of(spans.one("process")) == REMOTE
        assert links_of(spans.one("process")) == [header_of(spans.one("main"))]

    @pytest.mark.parametrize("attempt", [1, 2])
    def test_what_is_not_sampled_stays_so_in_every_attempt(self, spans: Spans, session: Session, attempt: int):
        seen: list[SpanContext] = []

        @inbox_handler("Looks")
        def looks(session: Session, event: OrderConfirmed) -> None:
            seen.append(trace.get_current_span().get_span_context())
            assert outbox.add(session, STOCK).headers["traceparent"] == UNSAMPLED

        inbox.run_once(session, message(headers={"traceparent": UNSAMPLED}), looks, attempt=attempt)
        assert (seen[0].trace_id, seen[0].trace_flags) == (CONTEXT.trace_id, 0)
        assert spans.all() == []

    def test_a_failure_is_recorded_without_values(self, spans: Spans, engine: Engine):
        @inbox_handler("Pays")
        def pays(session: Session, event: OrderConfirmed) -> None:
            session.execute(text("SELECT :card FROM nowhere"), {"card": SECRET})

        with Session(engine) as session, pytest.raises(SQLAlchemyError), session.begin():
            inbox.run_once(session, message(), pays)
        span = spans.one("process")
        (event,) = span.events
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "OperationalError: no such table: nowhere"
        assert (span.attributes or {})["error.type"] == "OperationalError"
        assert (event.name, (event.attributes or {})["exception.type"]) == (
            "exception",
            "sqlalchemy.exc.OperationalError",
        )
        assert "in pays" in str((event.attributes or {})["exception.stacktrace"])
        assert SECRET not in spans.text()

    def test_a_signal_is_a_failure_too(self, spans: Spans, engine: Engine):
        with Session(engine) as session, pytest.raises(Retry), session.begin():
            inbox.run_once(session, message(), raising(Retry("later")))
        assert spans.one("process").status.description == "Retry: later"


class TestBatch:
    def test_it_is_one_span_with_links(self, spans: Spans, session: Session):
        sent = [message(id="1", headers={"traceparent": REMOTE}), message(id="2"), message(id="2")]
        assert inbox.run_batch(session, entries(*sent)) == ["processed", "processed", "duplicate"]
        process = spans.one("process")
        assert (parent_of(process), links_of(process), process.kind) == (None, [REMOTE], SpanKind.CONSUMER)
        found = dict(process.attributes or {})
        assert found["messaging.batch.message_count"] == 3
        assert (found["outboxkit.messages.processed"], found["outboxkit.messages.duplicate"]) == (2, 1)
        assert {parent_of(each) for each in spans.named("create StockChanged")} == {header_of(process)}

    def test_if_nothing_is_sampled_there_is_none(self, spans: Spans, session: Session):
        inbox.run_batch(session, entries(message(headers={"traceparent": UNSAMPLED})))
        assert spans.all() == []

    def test_a_failure_is_that_of_the_handler(self, spans: Spans, engine: Engine):
        failing = Entry.of(message(), handler_of(raising(KeyError("x"))))
        with Session(engine) as session, pytest.raises(BatchEntryFailed), session.begin():
            inbox.run_batch(session, [failing])
        assert (spans.one("process").attributes or {})["error.type"] == "KeyError"
        assert len(spans.one("process").events) == 1


class TestSent:
    def test_a_batch_is_one_span_with_links_to_what_is_sampled(self, spans: Spans):
        contexts = [f"00-{number:032x}-{number:016x}-0{number % 2}" for number in range(1, 4 * MOST_LINKS)]
        batch = [message(id=str(index), headers={"traceparent": each}) for index, each in enumerate(contexts)]
        with tracing.sending(batch, Endpoint("rabbitmq", "shop")) as span:
            span.counts(["confirmed", "confirmed"], fine=("confirmed",))
        send = spans.one("publish shop")
        assert (send.kind, parent_of(send), send.status.status_code) == (SpanKind.CLIENT, None, StatusCode.UNSET)
        assert links_of(send) == contexts[: 2 * MOST_LINKS : 2]
        assert dict(send.attributes or {}) == {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": "shop",
            "messaging.batch.message_count": len(batch),
            "outboxkit.messages.confirmed": 2,
        }

    def test_a_message_that_is_not_taken_is_an_error(self, spans: Spans):
        with tracing.sending([message(), message()], Endpoint("rabbitmq", "shop")) as span:
            span.counts(["confirmed", "not sent"], fine=("confirmed",))
        send = spans.one("publish shop")
        assert (send.attributes or {})["error.type"] == "not sent"
        assert (send.attributes or {})["outboxkit.messages.not_sent"] == 1
        assert send.status.description == "of 2 messages: 1 not sent"

    def test_if_nothing_is_sampled_there_is_none(self, spans: Spans):
        with tracing.sending([message(headers={"traceparent": UNSAMPLED})], Endpoint()):
            pass
        assert spans.all() == []


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
        monkeypatch.setattr(tracing, "HAS_API", False)
    sent = message(headers={"traceparent": REMOTE, "tracestate": "vendor=x"})
    assert inbox.run_once(session, sent, work) is Outcome.PROCESSED
    assert inbox.run_batch(session, [Entry.of(message(id="2"), handler_of(work))]) == ["processed"]
    assert tracing.sending([sent], Endpoint()) is tracing.carrying(sent) is tracing.processing(sent, "Work")
    assert tracing.processing_batch([sent]) is tracing.processing(sent, "Work")
