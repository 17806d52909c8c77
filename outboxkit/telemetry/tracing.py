"""Spans along the way of a message: created, sent, processed. Nothing else uses OpenTelemetry's API for traces.

Nothing is done unless the application has set up an SDK. The context travels in the W3C headers of the message,
whatever propagator the application has, without baggage. Names and attributes follow the conventions for messaging:
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from outboxkit.errors.failures import first_line, traceback_of
from outboxkit.message import MOST_STATE, TRACE_HEADERS, TRACEPARENT, Message

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
    from opentelemetry.trace.span import TraceState
except ImportError:
    HAS_API = False
else:
    HAS_API = True
    _STAND_INS = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    _OPEN, _ATTEMPTS = contexts.create_key("outboxkit-open"), contexts.create_key("outboxkit-attempts")

TRACER = "outboxkit"
"""The name of the tracer."""


MOST_LINKS = 128
"""The maximum number of links of a span, which is also the SDK's own."""
_LENGTH, _UNSAMPLED = 55, frozenset("02468ace")
"""The length of a `traceparent`, and the last digits of one that is not sampled."""
_BATCH = "batch"


class WorkSpan:
    """The span of some work, current in its block. Without a span it does nothing."""

    __slots__ = ("_has_failed", "_inside", "_span", "_token")

    def __init__(self, span: "trace.Span | None" = None, inside: "contexts.Context | None" = None) -> None:
        self._span, self._inside, self._has_failed = span, inside, False

    def __enter__(self) -> Self:
        if self._inside is not None:
            self._token = contexts.attach(self._inside)
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        """End the span. An error that passes is recorded and goes on."""
        if self._span is None:
            return
        if error is not None:
            self.fails(error)
        contexts.detach(self._token)
        with suppress(Exception):
            self._span.end()

    def ends_as(self, outcome: str) -> None:
        """Note the outcome of the work."""
        if self._span is not None:
            with suppress(Exception):
                self._span.set_attribute("outboxkit.outcome", str(outcome))

    def fails(self, error: BaseException, outcome: str | None = None) -> None:
        """Record the first error as the log shows it: without SQL, its parameters and values of rows."""
        if self._span is None or self._has_failed or not self._span.is_recording():
            return
        self._has_failed = True
        with suppress(Exception):
            kind, text = type(error), first_line(error)
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            event = {"exception.type": name, "exception.message": text, "exception.stacktrace": traceback_of(error)}
            self._span.add_event("exception", event)
            self._fail(self._span, kind.__name__, text)
            if outcome is not None:
                self.ends_as(outcome)

    def counts(self, outcomes: Iterable[str], *, fine: Sequence[str]) -> None:
        """Note how many messages had each outcome. The work has failed if any outcome is not `fine`."""
        if self._span is None or not self._span.is_recording():
            return
        with suppress(Exception):
            counted = Counter(map(str, outcomes))
            for outcome, count in counted.items():
                self._span.set_attribute(f"outboxkit.messages.{outcome.replace(' ', '_')}", count)
            failed = {outcome: count for outcome, count in counted.items() if outcome not in fine}
            if failed:
                text = ", ".join(f"{count} {outcome}" for outcome, count in failed.items())
                self._fail(self._span, next(iter(failed)), f"of {counted.total()} messages: {text}")

    @staticmethod
    def _fail(span: "trace.Span", kind: str, text: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, text))


NO_SPAN = WorkSpan()
"""The span of work that is not traced."""

_known: "tuple[trace.TracerProvider, trace.Tracer] | None" = None


def application_tracer() -> "trace.Tracer | None":
    """The tracer of the application's SDK; None if it has set up none."""
    global _known  # noqa: PLW0603 - one for the process, as OpenTelemetry's own provider is
    if not HAS_API:
        return None
    provider = trace.get_tracer_provider()
    if _known is not None and _known[0] is provider:
        return _known[1]
    if isinstance(provider, _STAND_INS):
        return None
    _known = provider, provider.get_tracer(TRACER)
    return _known[1]


class Endpoint(NamedTuple):
    """Where messages are sent to or come from: the messaging system, and a name in it, such as a queue."""

    system: str = TRACER
    name: str | None = None


HERE = Endpoint()
"""That of a message which a program of its own gives to the inbox."""


def created(fields: Mapping[str, Any], destination: str) -> Mapping[str, object]:
    """The headers of a new message with these fields: with the context of a span of its own, if it is added in a trace.

    If the current span does not record, its context is passed on unchanged, unless the message has one of its own.
    """
    headers: Mapping[str, object] = fields.get("headers") or {}
    if not HAS_API or (current := trace.get_current_span()) is trace.INVALID_SPAN:
        return headers
    with suppress(Exception):  # of a tracing library
        context = current.get_span_context()
        if current.is_recording():
            if (tracer := application_tracer()) is not None:
                more = {"outboxkit.destination": destination, "outboxkit.causation_id": fields.get("causation_id")}
                endpoint = Endpoint(name=fields["type"] if fields.get("topic") is None else fields["topic"])
                of_message = _of_message(fields["id"], fields["type"], fields.get("correlation_id"))
                attributes = _attributes("create", endpoint, more) | of_message
                span = tracer.start_span(f"create {fields['type']}", kind=SpanKind.PRODUCER, attributes=attributes)
                context = span.get_span_context()
                span.end()
        elif "traceparent" in headers:
            return headers
        return _with_context(headers, context) if context.is_valid else headers
    return headers


def sending(messages: Sequence[Message], to: Endpoint, attempts: Iterable[tuple[str, int]] = ()) -> WorkSpan:
    """The span of publishing a batch, with links to the contexts of its messages.

    There is none if all of them say that they are not sampled. `attempts` has the ids of messages that were tried
    before, and the number of this attempt.
    """
    tracer = application_tracer()
    if tracer is None or not messages:
        return NO_SPAN
    with suppress(Exception):  # of a tracing library
        links, is_sampled = _links(messages)
        if not is_sampled:
            return NO_SPAN
        attributes = _attributes("publish", to, {"messaging.batch.message_count": len(messages)})
        span = tracer.start_span(_named("publish", to), kind=SpanKind.CLIENT, attributes=attributes, links=links)
        return WorkSpan(span, contexts.set_value(_ATTEMPTS, dict(attempts), trace.set_span_in_context(span)))
    return NO_SPAN


def carrying(message: Message) -> WorkSpan:
    """No span, but the message's own context as the current one, for a request that is this message's alone."""
    if application_tracer() is None or (origin := _context_of(message.headers)) is None:
        return NO_SPAN
    span = NonRecordingSpan(origin)
    return WorkSpan(span, trace.set_span_in_context(span))


def processing(
    message: Message, handler: str, *, attempt: int = 1, replayed: bool = False, at: Endpoint = HERE
) -> WorkSpan:
    """The span of handling one message, a child of the message's context; no second one for the same work.

    A retry and a replay begin a trace of their own, with a link to that context. If another span of the message's trace
    is current, such as that of a request which has brought it, the span is its child. One of another trace is linked.
    """
    tracer = application_tracer()
    if tracer is None:
        return NO_SPAN
    with suppress(Exception):  # of a tracing library
        around = contexts.get_current()
        work = (handler, message.id)
        if contexts.get_value(_OPEN, around) == work:
            return NO_SPAN
        attempt = _attempt_of(message, attempt, around)
        parent, links = _relation(message, around, again=attempt > 1 or replayed)
        more: dict[str, Any] = {"outboxkit.handler": handler, "outboxkit.attempt": attempt}
        attributes = _attributes("process", at, more) | _of_message(message.id, message.type, message.correlation_id)
        if replayed:
            attributes["outboxkit.replayed"] = True
        kind = SpanKind.CONSUMER
        span = tracer.start_span(_named("process", at), parent, kind=kind, attributes=attributes, links=links)
        return WorkSpan(span, contexts.set_value(_OPEN, work, trace.set_span_in_context(span, around)))
    return NO_SPAN


def processing_batch(messages: Sequence[Message], *, at: Endpoint = HERE) -> WorkSpan:
    """The span of handling many messages in one transaction, with links to their contexts; no second one inside it.

    There is none if all of them say that they are not sampled: what their handlers do is not sampled either then.
    """
    tracer = application_tracer()
    if tracer is None or not messages:
        return NO_SPAN
    with suppress(Exception):  # of a tracing library
        around = contexts.get_current()
        if contexts.get_value(_OPEN, around) == _BATCH:
            return NO_SPAN
        links, is_sampled = _links(messages)
        if is_sampled:
            attributes = _attributes("process", at, {"messaging.batch.message_count": len(messages)})
            kind = SpanKind.CONSUMER
            span = tracer.start_span(_named("process", at), kind=kind, attributes=attributes, links=links)
        else:
            span = NonRecordingSpan(_context_of(messages[0].headers) or trace.INVALID_SPAN_CONTEXT)
        return WorkSpan(span, contexts.set_value(_OPEN, _BATCH, trace.set_span_in_context(span, around)))
    return NO_SPAN


def _relation(
    message: Message, around: "contexts.Context", *, again: bool
) -> "tuple[contexts.Context, list[trace.Link]]":
    """The parent of a message's span, as a context, and its links. What is not sampled is always the parent."""
    origin, ambient = _context_of(message.headers), trace.get_current_span(around).get_span_context()
    if origin is None or ambient.trace_id == origin.trace_id:
        return around, []
    links = [Link(ambient)] if ambient.is_valid else []
    if again and origin.trace_flags.sampled:
        return trace.set_span_in_context(trace.INVALID_SPAN, around), [Link(origin), *links]
    return trace.set_span_in_context(NonRecordingSpan(origin), around), links


def _attempt_of(message: Message, attempt: int, around: "contexts.Context") -> int:
    """The number of the attempt: the relay knows it if it hands messages to handlers itself."""
    attempts = contexts.get_value(_ATTEMPTS, around)
    return max(attempt, attempts.get(message.id, 1)) if isinstance(attempts, Mapping) else attempt


def _links(messages: Iterable[Message]) -> "tuple[list[trace.Link], bool]":
    """Links to the contexts that are sampled, and whether a span may be: if not, every message says no."""
    links, is_sampled = list[Link](), False
    for message in messages:
        text = message.headers.get("traceparent")
        if isinstance(text, str) and len(text) == _LENGTH and text[-1] in _UNSAMPLED:
            continue  # most of them, if few are sampled
        origin = _context_of(message.headers, with_state=False)
        if origin is None:
            is_sampled = True
        elif origin.trace_flags.sampled:
            is_sampled = True
            links.append(Link(origin))
            if len(links) == MOST_LINKS:
                break
    return links, is_sampled


def _context_of(headers: Mapping[str, object], *, with_state: bool = True) -> "SpanContext | None":
    """The trace context in a message's headers (W3C Trace Context, section 3.2); None if there is no valid one."""
    text = headers.get("traceparent")
    match = TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    state = headers.get("tracestate") if with_state else None
    is_short = isinstance(state, str) and 0 < len(state) <= MOST_STATE
    context = SpanContext(
        int(match[2], 16),
        int(match[3], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match[4], 16)),
        trace_state=TraceState.from_header([str(state)]) if is_short else None,
    )
    return context if context.is_valid else None


def _with_context(headers: Mapping[str, object], context: "SpanContext") -> Mapping[str, object]:
    others = {name: value for name, value in headers.items() if name not in TRACE_HEADERS}
    others["traceparent"] = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    if context.trace_state:
        others["tracestate"] = context.trace_state.to_header()
    return others


def _named(operation: str, endpoint: Endpoint) -> str:
    return operation if endpoint.name is None else f"{operation} {endpoint.name}"


def _attributes(operation: str, endpoint: Endpoint, more: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {
        "messaging.system": endpoint.system,
        "messaging.operation.name": operation,
        "messaging.operation.type": "send" if operation == "publish" else operation,
        "messaging.destination.name": endpoint.name,
        **more,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _of_message(id_: str, type_: str, correlation_id: str | None) -> dict[str, Any]:
    attributes = {"messaging.message.id": id_, "outboxkit.type": type_}
    if correlation_id is not None:
        attributes["messaging.message.conversation_id"] = correlation_id
    return attributes
