"""A span that is current in its block, or nothing in its place, and the tracer of the application.

OpenTelemetry's API is looked for here. Without it, or with no SDK set up, nothing is done. No error of a tracing
library reaches a message.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Self

from outboxkit.errors.failures import first_line, traceback_of

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace import Status, StatusCode
except ImportError:
    HAS_API = False
else:
    HAS_API = True
    _STAND_INS = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)

SCOPE = "outboxkit"
"""The name of the tracer."""


class WorkSpan:
    """The span of some work, current in its block. Without a span it does nothing.

    Args:
        span: an OpenTelemetry span, recording or not.
        inside: the context of the block.
    """

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
    _known = provider, provider.get_tracer(SCOPE)
    return _known[1]
