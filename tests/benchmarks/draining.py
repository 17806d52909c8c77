"""What a long drain costs: memory, and statements."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.benchmarks.place import Case, Place, speed
from tests.benchmarks.raw_publisher import RawPublisher
from tests.benchmarks.rounds import Figures, Line, Measure


@contextmanager
def memory(place: Place) -> Iterator[Mapping[str, Measure]]:
    """The relay's own memory over a long backlog. The queue keeps the last messages only."""
    with place.queue("classic", **{"x-max-length": 20_000}) as raw:
        yield {"relay": lambda: _resident(place, raw)}


@contextmanager
def statements(place: Place) -> Iterator[Mapping[str, Measure]]:
    """What PostgreSQL is sent, as libpq itself wrote it down: BEGIN and COMMIT count too."""
    with place.queue("classic") as raw:
        yield {
            name: lambda keys=keys: _statements(place, raw, keys)  # type: ignore[misc]
            for name, keys in (("no keys", 0), ("1000 keys", 1000), ("1 key", 1))
        }


def _resident(place: Place, raw: RawPublisher) -> Figures:
    reports = place.drain(raw, count=place.memory_rows)
    found = reports[0].resident
    quarter = max(len(found) // 4, 1)
    # The first quarter is left out: the process is still warming up its caches then.
    return {**speed(reports), "peak": max(found), "grown": max(found[-quarter:]) - max(found[quarter : 2 * quarter])}


def _statements(place: Place, raw: RawPublisher, keys: int) -> Figures:
    count = 5_000 if place.quick else 20_000
    reports = place.drain(raw, count=count, keys=keys, trace=True)
    return {"statements": sum(report.statements for report in reports) / count}


CASES = (
    Case(
        "memory",
        "resident memory of a relay that drains a long backlog",
        memory,
        (
            Line("peak", ("relay", "peak"), at_most=120, unit="MiB"),
            Line("last quarter more than second", ("relay", "grown"), at_most=2, unit="MiB"),
        ),
        most_rounds=1,
    ),
    Case(
        "statements",
        "statements a message",
        statements,
        tuple(
            Line(f"{name}: statements a message", (name, "statements"), at_most=0.05)
            for name in ("no keys", "1000 keys", "1 key")
        ),
        most_rounds=1,
    ),
)
