"""The memory that a long drain takes."""

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


def _resident(place: Place, raw: RawPublisher) -> Figures:
    reports = place.drain(raw, count=place.memory_rows)
    found = reports[0].resident
    quarter = max(len(found) // 4, 1)
    # The first quarter is left out: the process is still warming up its caches then.
    return {**speed(reports), "peak": max(found), "grown": max(found[-quarter:]) - max(found[quarter : 2 * quarter])}


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
)
