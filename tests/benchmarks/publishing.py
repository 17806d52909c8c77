"""How fast a relay publishes, beside a raw publisher on the same queue, and the memory that a long drain takes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import mean
from typing import Any

from tests.benchmarks.place import Case, Place, slices, speed
from tests.benchmarks.raw_publisher import RawPublisher
from tests.benchmarks.rounds import Figures, Line, Measure

SLICE = 20_000
SHAPES = ("1 key", "10 keys", "1000 keys", "own keys")
SEVERAL, MORE_RELAYS = 60_000, (2, 4, 10)


@contextmanager
def classic(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Everything that is compared at 1 KiB on a classic queue."""
    count = 4_000 if place.quick else 30_000
    with place.queue("classic") as raw:
        yield {
            "raw": lambda: raw_rate(raw, count, 1024),
            "relay": lambda: speed(place.drain(raw, count=count)),
            "1000 keys": lambda: speed(place.drain(raw, count=count, keys=1000)),
            "1 key": lambda: speed(place.drain(raw, count=count, keys=1)),
        }


@contextmanager
def quorum(place: Place) -> Iterator[Mapping[str, Measure]]:
    """A quorum queue, 1 KiB."""
    count = 4_000 if place.quick else 30_000
    with place.queue("quorum") as raw:
        yield {
            "raw": lambda: raw_rate(raw, count, 1024),
            "relay": lambda: speed(place.drain(raw, count=count)),
        }


@contextmanager
def keys(place: Place) -> Iterator[Mapping[str, Measure]]:
    """A long backlog by the number of keys; a shorter one by the number of relays, with 1 000 keys and without."""
    count = place.key_rows
    shapes = {"no keys": 0, "1 key": 1, "10 keys": 10, "1000 keys": 1000, "own keys": count}
    with place.queue("classic", **{"x-max-length": 20_000}) as raw:
        yield {
            **{name: partial(_long, place, raw, count, keys=number) for name, number in shapes.items()},
            **{
                f"{relays} relays, {name}": partial(_several, place, raw, keys=number, relays=relays)
                for relays in (1, *MORE_RELAYS)
                for name, number in (("no keys", 0), ("1000 keys", 1000))
            },
            "first backlog": partial(_several, place, raw, keys=1000, analyzed=False),
        }


@contextmanager
def vacuum(place: Place) -> Iterator[Mapping[str, Measure]]:
    """A long backlog, with and without a transaction elsewhere that holds vacuum back."""
    count = 40_000 if place.quick else 200_000
    with place.queue("classic", **{"x-max-length": 20_000}) as raw:
        yield {
            "free": lambda: _long(place, raw, count, blocked=False),
            "blocked": lambda: _long(place, raw, count, blocked=True),
        }


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


def raw_rate(raw: RawPublisher, count: int, size: int) -> Figures:
    """What the broker takes from pre-built frames."""
    raw.purge()
    pieces = raw.build(count, size)
    return {"rate": count / raw.publish(pieces, count)}


def _several(place: Place, raw: RawPublisher, **how: Any) -> Figures:
    return speed(place.drain(raw, count=SEVERAL, **how))


def _long(place: Place, raw: RawPublisher, count: int, **how: Any) -> Figures:
    reports = place.drain(raw, count=count, **how)
    rates = slices(reports[0], SLICE)
    third = max(len(rates) // 3, 1)
    each = {f"slice {number:02}": rate for number, rate in enumerate(rates, start=1)}
    return {**speed(reports), "flat": mean(rates[-third:]) / mean(rates[:third]), **each}


def _ratio(name: str, to: str = "raw", **target: float) -> Line:
    return Line(f"{name} / {to}", (name, "rate"), (to, "rate"), unit="/s", **target)


CASES = (
    Case(
        "classic",
        "a relay and a raw publisher, classic queue, 1 KiB: with keys and without",
        classic,
        (
            _ratio("relay", at_least=0.85),
            _ratio("1000 keys", "relay", at_least=0.85),
            _ratio("1 key", "relay", at_least=0.5),
            Line("client CPU a message, no keys", ("relay", "cpu"), at_most=25, unit="us"),
            Line("client CPU a message, 1000 keys", ("1000 keys", "cpu"), unit="us"),
            Line("client CPU a message, 1 key", ("1 key", "cpu"), unit="us"),
        ),
    ),
    Case(
        "quorum",
        "the same on a quorum queue",
        quorum,
        (_ratio("relay", at_least=0.65),),
    ),
    Case(
        "keys",
        "300 000 rows by keys; 60 000 by relays, with 1 000 keys and without; never analyzed",
        keys,
        (
            *(_ratio(name, "no keys", at_least=0.85) for name in SHAPES),
            *(
                Line(f"{name}: last third / first third", (name, "flat"), at_least=0.85)
                for name in ("no keys", *SHAPES)
            ),
            *(_ratio(f"{relays} relays, no keys", "1 relays, no keys", at_least=0.9) for relays in MORE_RELAYS),
            *(
                _ratio(f"{relays} relays, 1000 keys", f"{relays} relays, no keys", at_least=0.9)
                for relays in MORE_RELAYS
            ),
            _ratio("first backlog", "1 relays, 1000 keys", at_least=0.9),
        ),
    ),
    Case(
        "vacuum",
        "200 000 rows while a transaction elsewhere holds vacuum back",
        vacuum,
        (
            _ratio("blocked", "free", at_least=0.9),
            Line("blocked: last third / first third", ("blocked", "flat"), at_least=0.9),
            Line("free: last third / first third", ("free", "flat")),
        ),
    ),
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
