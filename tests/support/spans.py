"""Spans as OpenTelemetry's own SDK has them, kept in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanContext

REMOTE = "00-113ad9c4e42b27583ae98ba698d54255-e3743e35ff56f219-01"
"""A context of another service, which is sampled."""
UNSAMPLED = REMOTE[:-1] + "0"


class Spans:
    """The spans that have ended, and a tracer of the application's own."""

    def __init__(self, sampler: Sampler) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("application")

    def all(self) -> list[ReadableSpan]:
        """In the order of their beginnings."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def text(self) -> str:
        """All that the exporter was told, as JSON."""
        return "".join(span.to_json() for span in self.all())


@contextmanager
def recording(sampler: Sampler | None = None) -> Iterator[Spans]:
    """Have every span of this process recorded while the block runs, as after `set_tracer_provider`."""
    before, spans = trace._TRACER_PROVIDER, Spans(sampler or ParentBased(ALWAYS_ON))
    trace._TRACER_PROVIDER = spans.provider
    try:
        yield spans
    finally:
        trace._TRACER_PROVIDER = before
        spans.provider.shutdown()


def context_of(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def header_of(span: ReadableSpan) -> str:
    """The `traceparent` of a span."""
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parent_of(span: ReadableSpan) -> str | None:
    """The `traceparent` of its parent."""
    parent = span.parent
    return None if parent is None else f"00-{parent.trace_id:032x}-{parent.span_id:016x}-{parent.trace_flags:02x}"


def links_of(span: ReadableSpan) -> list[str]:
    """The `traceparent`s of its links."""
    found = [link.context for link in span.links]
    return [f"00-{each.trace_id:032x}-{each.span_id:016x}-{each.trace_flags:02x}" for each in found]
