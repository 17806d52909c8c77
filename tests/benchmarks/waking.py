"""From a commit to the broker's confirm, with a relay that has nothing else to do."""

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outboxkit import outbox
from outboxkit.message import Message
from tests.benchmarks import backlog
from tests.benchmarks.place import Case, Place
from tests.benchmarks.raw_publisher import TYPE
from tests.benchmarks.relays import Relays
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.benchmarks.running_relay import Report

MESSAGES_A_SECOND = 100
SETTLE_SECONDS = 2.5
"""Until an idle relay listens, and has fallen asleep."""


@contextmanager
def latency(place: Place) -> Iterator[Mapping[str, Measure]]:
    """A message a commit, 100 a second."""
    with place.queue("classic"):
        yield {"listen": lambda: _latency(place)}


@contextmanager
def idle(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Nothing to do."""
    with place.queue("classic"):
        yield {"relay": lambda: _idle(place)}


def _latency(place: Place) -> Figures:
    backlog.fill(place.database_url, count=0)
    with Relays(place.orders(ids=True)) as running:
        running.begin()
        time.sleep(SETTLE_SECONDS)
        committed = _commit(place)
        running.await_confirmed(len(committed), seconds=30)
        (report,) = running.stop()
    waits = sorted((report.ids[name] - at) / 1e6 for name, at in committed.items())
    return {
        "p50": statistics.median(waits),
        "p99": waits[int(len(waits) * 0.99)],
        "longest": waits[-1],
        "core": _core(report),
    }


def _idle(place: Place) -> Figures:
    seconds = 5.0 if place.quick else 20.0
    backlog.fill(place.database_url, count=0)
    with Relays(place.orders(trace=True, warm_up=SETTLE_SECONDS)) as running:
        running.begin()
        time.sleep(SETTLE_SECONDS + seconds)
        (report,) = running.stop()
    return {"statements": report.statements * 1e9 / (report.stopped - report.started), "core": _core(report)}


def _core(report: Report) -> float:
    """The share of a core that it has used, in percent."""
    return 100 * report.cpu_until_stopped * 1e9 / (report.stopped - report.started)


def _commit(place: Place) -> dict[str, int]:
    """When each message's commit was asked for."""
    count = MESSAGES_A_SECOND * (3 if place.quick else 15)
    engine = create_engine(place.database_url)
    committed: dict[str, int] = {}
    try:
        with Session(engine) as session:
            began = time.monotonic()
            for number in range(count):
                time.sleep(max(began + number / MESSAGES_A_SECOND - time.monotonic(), 0))
                message = outbox.add(session, Message(id=f"message-{number}", type=TYPE, payload=b"{}"))
                session.flush()
                committed[message.id] = time.monotonic_ns()
                session.commit()
    finally:
        engine.dispose()
    return committed


CASES = (
    Case(
        "latency",
        "from the commit to the confirm at 100 messages a second",
        latency,
        (
            Line("LISTEN, p50", ("listen", "p50"), at_most=10, unit="ms"),
            Line("LISTEN, p99", ("listen", "p99"), unit="ms"),
            Line("a core's share at 100/s, LISTEN", ("listen", "core"), unit="%"),
        ),
    ),
    Case(
        "idle",
        "a relay that has nothing to do",
        idle,
        (
            Line("statements a second", ("relay", "statements"), at_most=2),
            Line("a core's share", ("relay", "core"), at_most=1, unit="%"),
        ),
        most_rounds=1,
    ),
)
