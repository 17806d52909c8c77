"""How fast a consumer is, beside one that is written by hand and one that only receives; its memory and round trips."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from tests.benchmarks.consumers import drain
from tests.benchmarks.place import Case, Place
from tests.benchmarks.rounds import Figures, Line, Measure

COUNTS = {"raw": 30_000, "hand-written": 4_000, "per message": 4_000, "per message, thread": 4_000, "batch": 40_000}
FRESH = {"per message": 6_000, "without the query": 6_000, "batch": 20_000}
"""Messages that come twice."""
QUICK = 10
PORTION = 20_000


@contextmanager
def consume(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Each consumer alone, on a queue that is full."""
    counts = {name: count // QUICK if place.quick else count for name, count in COUNTS.items()}
    yield {
        name: lambda name=name, count=count: drain(place, name, count, every=count // 100).speed()  # type: ignore[misc]
        for name, count in counts.items()
    }


@contextmanager
def duplicates(place: Place) -> Iterator[Mapping[str, Measure]]:
    """A queue full of fresh messages, and then the same ones once more."""
    counts = {name: count // QUICK if place.quick else count for name, count in FRESH.items()}
    yield {name: partial(_twice, place, name, count) for name, count in counts.items()}


@contextmanager
def memory(place: Place) -> Iterator[Mapping[str, Measure]]:
    """A long run, over several portions of a queue."""
    count = place.memory_messages
    yield {name: partial(_memory, place, name, count) for name in ("batch", "per message")}


@contextmanager
def round_trips(place: Place) -> Iterator[Mapping[str, Measure]]:
    """What PostgreSQL is sent once a consumer has prepared its statements, as libpq itself wrote it down."""
    half = 1_000 if place.quick else 4_000
    yield {name: partial(_to_database, place, name, half) for name in ("per message", "hand-written", "batch")}


def _twice(place: Place, name: str, count: int) -> Figures:
    return drain(place, name, 2 * count, every=count // 100, portion=count, again=True).fresh_and_again()


def _memory(place: Place, name: str, count: int) -> Figures:
    every = max(count // 200, 1)
    watch = drain(place, name, count, every=every, portion=max(PORTION // every, 1) * every)
    return {**watch.memory(), **watch.speed()}


def _to_database(place: Place, name: str, half: int) -> Figures:
    return drain(place, name, 2 * half, every=half, portion=half, trace=True).to_database()


def _ratio(name: str, to: str, **target: float) -> Line:
    return Line(f"{name} / {to}", (name, "rate"), (to, "rate"), unit="/s", **target)


CASES = (
    Case(
        "consume",
        "our consumer, also in threads, one written by hand, and one that only acks; quorum queue, 1 KiB",
        consume,
        (
            _ratio("batch", "per message", at_least=2),
            _ratio("batch", "raw"),
            _ratio("per message", "hand-written", at_least=0.95),
            _ratio("per message, thread", "per message", at_least=0.8),
            *(Line(f"client CPU a message, {name}", (name, "cpu"), unit="us") for name in COUNTS),
        ),
    ),
    Case(
        "duplicates",
        "our consumer on messages that it has handled, also without its query for those that wait",
        duplicates,
        (
            Line("again / fresh", ("per message", "again"), ("per message", "fresh")),
            Line("again / fresh, batch", ("batch", "again"), ("batch", "fresh")),
            Line("again / without the query", ("per message", "again"), ("without the query", "again"), at_least=5),
            Line("fresh / without the query", ("per message", "fresh"), ("without the query", "fresh"), at_least=0.98),
        ),
    ),
    Case(
        "consume-memory",
        "resident memory of our consumer over many messages",
        memory,
        tuple(
            line
            for name in ("batch", "per message")
            for line in (
                Line(f"{name}: peak", (name, "peak"), unit="MiB"),
                Line(f"{name}: last quarter more than second", (name, "grown"), at_most=2, unit="MiB"),
            )
        ),
        most_rounds=1,
    ),
    Case(
        "consume-roundtrips",
        "round trips to the database a message",
        round_trips,
        (
            Line("per message: round trips", ("per message", "round trips"), at_most=4.1),
            Line("hand-written: round trips", ("hand-written", "round trips")),
            Line("batch: round trips", ("batch", "round trips")),
            Line("batch: statements", ("batch", "statements")),
        ),
        most_rounds=1,
    ),
)
