"""What traces cost: a message that is added, published in a batch and handled, without the library and with it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from outboxkit.telemetry import tracing
from tests.benchmarks.adding import Placed
from tests.benchmarks.place import Case, Place
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.support.spans import recording

BATCH, TIMES = 1000, 20
WITHOUT, ALONE, UNSAMPLED, ALL = "no library", "API alone", "not sampled", "all sampled"


@contextmanager
def traces(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Nothing is written to the database: what is measured is the work of the process."""
    engine = create_engine(place.database_url)
    times = 2 if place.quick else TIMES

    def measured(around: Callable[[], Any]) -> Measure:
        def measure() -> Figures:
            with around(), Session(engine) as session:
                return _microseconds(session, times)

        return measure

    try:
        yield {
            WITHOUT: measured(_without),
            ALONE: measured(nullcontext),
            UNSAMPLED: measured(lambda: _in_a_trace(ALWAYS_OFF)),
            ALL: measured(lambda: _in_a_trace(ALWAYS_ON)),
        }
    finally:
        engine.dispose()


@contextmanager
def _without() -> Iterator[None]:
    with mock.patch.object(tracing, "HAS_API", new=False):
        yield


@contextmanager
def _in_a_trace(sampler: Sampler) -> Iterator[None]:
    with recording(sampler) as made, made.tracer.start_as_current_span("request"):
        yield


def _microseconds(session: Session, times: int) -> Figures:
    """CPU time of each step, for one message."""
    added = handled = sent = 0.0
    for _ in range(times):
        events = [Placed(number, "12.50") for number in range(BATCH)]
        started = time.process_time()
        messages = outbox.add_all(session, events, key="order-1")
        added += time.process_time() - started
        session.rollback()
        started = time.process_time()
        with tracing.sending(messages, tracing.HERE) as span:
            span.counts(("confirmed" for _ in messages), fine=("confirmed",))
        sent += time.process_time() - started
        started = time.process_time()
        _handle(messages)
        handled += time.process_time() - started
    count = BATCH * times / 1e6
    return {"add": added / count, "send": sent / count, "process": handled / count}


def _handle(messages: list[Message]) -> None:
    for message in messages:
        with tracing.processing(message, "Work") as span:
            span.ends_as("processed")


CASES = (
    Case(
        "traces",
        "adding, sending and handling a message without OpenTelemetry, and with it",
        traces,
        (
            *(Line(f"add_all, {name}", (name, "add"), unit="us") for name in (WITHOUT, ALONE, UNSAMPLED, ALL)),
            Line("add_all, API alone / no library", (ALONE, "add"), (WITHOUT, "add")),
            *(Line(f"send, {name}", (name, "send"), unit="us") for name in (WITHOUT, ALONE, UNSAMPLED, ALL)),
            *(Line(f"process, {name}", (name, "process"), unit="us") for name in (WITHOUT, ALONE, UNSAMPLED, ALL)),
        ),
    ),
)
