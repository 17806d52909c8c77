"""What metrics cost: relay and consumers with and without, and a scrape of large tables."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median

from outboxkit.runtime import engines, process
from outboxkit.telemetry import tables
from outboxkit.telemetry.tables import TableReader
from tests.benchmarks import backlog
from tests.benchmarks.consumers import drain
from tests.benchmarks.place import Case, Place, speed
from tests.benchmarks.rounds import Figures, Line, Measure

COUNTS = {"per message": 4_000, "per message, metrics": 4_000, "batch": 40_000, "batch, metrics": 40_000}
WITHOUT = ("relay", "batch", "per message")
ROWS = 1_000_000
SCRAPES = 11
DEAD = """
INSERT INTO outboxkit_dead_letter (side, type, key, payload, headers, content_type, reason, attempts, parked)
SELECT 'outbox', 'T', 'k' || n, '', '{}', 'x', 'rejected', 10, n % 2 = 0 FROM generate_series(1, :rows) n
"""

LATER = "UPDATE outboxkit_outbox SET due_at = now() + interval '1 day' WHERE position % 2 = 0"


@contextmanager
def metrics(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Relay and consumers, each with its metrics collected and without."""
    count = 4_000 if place.quick else 60_000
    counts = {name: of // 10 if place.quick else of for name, of in COUNTS.items()}
    with place.queue("classic") as raw:
        yield {
            "relay": lambda: speed(place.drain(raw, count=count)),
            "relay, metrics": lambda: speed(place.drain(raw, count=count, metrics=True)),
            **{name: partial(_drained, place, name, of) for name, of in counts.items()},
        }


def _drained(place: Place, name: str, count: int) -> Figures:
    return drain(place, name, count, every=count // 100).speed()


@contextmanager
def scrape(place: Place) -> Iterator[Mapping[str, Measure]]:
    """The gauges of the tables, read again and again from large ones: half of the messages wait for a later time."""
    rows = ROWS // 100 if place.quick else ROWS
    backlog.fill(place.database_url, count=rows, size=100)
    backlog.ask(place.database_url, LATER)
    backlog.ask(place.database_url, DEAD.replace(":rows", str(rows)))
    yield {"tables": lambda: _read(place.database_url)}
    backlog.ask(place.database_url, "TRUNCATE outboxkit_outbox, outboxkit_dead_letter")


def _read(url: str) -> Figures:
    async def reader() -> TableReader:
        engine = process.engine(url, name="benchmark")
        try:
            return TableReader(await engines.reader_beside(engine), monotonic=_leaping())
        finally:
            await engine.dispose()

    reading, took = asyncio.run(reader()), list[float]()
    for _ in range(SCRAPES):
        started = time.perf_counter()
        if not list(reading.read(tables.GAUGES[0])):  # it reads all of them
            raise RuntimeError("the tables could not be read")
        took.append((time.perf_counter() - started) * 1000)
    return {"first": took[0], "milliseconds": median(took[1:])}


def _leaping() -> Callable[[], float]:
    """A clock by which nothing that was read is kept."""
    seconds = iter(range(0, 10**9, 60))
    return lambda: float(next(seconds))


def _ratio(name: str) -> Line:
    return Line(f"{name}, metrics / without", (f"{name}, metrics", "rate"), (name, "rate"), at_least=0.97, unit="/s")


CASES = (
    Case(
        "metrics",
        "relay and consumers whose metrics are collected, and without",
        metrics,
        (
            *map(_ratio, WITHOUT),
            *(
                Line(f"client CPU a message, {each}{how}", (f"{each}{how}", "cpu"), unit="us")
                for each in WITHOUT
                for how in ("", ", metrics")
            ),
        ),
    ),
    Case(
        "scrape",
        "the gauges of the tables, of a million messages and a million dead letters",
        scrape,
        (
            Line("one scrape", ("tables", "milliseconds"), at_most=50, unit="ms"),
            Line("the first one, which connects", ("tables", "first"), unit="ms"),
        ),
        most_rounds=1,
    ),
)
