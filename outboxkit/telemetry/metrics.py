"""The seam of metrics: plain functions that record. Nothing is done unless a provider of OpenTelemetry is set up.

Nothing of OpenTelemetry is imported here. A provider exists only if its API has been imported elsewhere. An API
without an SDK counts as none.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from typing import Any

from outboxkit.telemetry.catalogue import METRICS, MOST_NAMES, OTHER, Kind, Metric

API = "opentelemetry.metrics"
METER = "outboxkit"
"""The name of the meter."""
NONE: Mapping[str, str] = {}
Reading = tuple[float, Mapping[str, str]]
"""A value of a gauge, and its attributes."""
Read = Callable[[], Iterable[Reading]]
"""Reads a gauge, in whatever thread collects. It blocks for a moment at most."""

_readers: dict[Metric, list[Read]] = {}
_lock = Lock()


class Instruments:
    """The instruments of one provider, made when they are first used."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self._meter = provider.get_meter(METER)
        self._recorders: dict[Metric, Callable[..., None]] = {}
        for metric in METRICS:
            if metric.kind is Kind.GAUGE:
                self._meter.create_observable_gauge(
                    metric.name, [partial(_observations, metric)], metric.unit, metric.description
                )

    def recorder(self, metric: Metric) -> Callable[..., None]:
        """The method that records a counter or a histogram: `recorder(value, attributes)`."""
        return self._recorders.get(metric) or self._make(metric)

    def _make(self, metric: Metric) -> Callable[..., None]:
        texts = metric.name, metric.unit, metric.description
        with _lock:
            if metric.kind is Kind.COUNTER:
                method: Callable[..., None] = self._meter.create_counter(*texts).add
                for value in metric.known:
                    method(0, {metric.attributes[0]: value})
            else:
                bounds = list(metric.bounds)
                method = self._meter.create_histogram(*texts, explicit_bucket_boundaries_advisory=bounds).record
            return self._recorders.setdefault(metric, method)


_instruments: Instruments | None = None


def use(provider: Any | None) -> None:
    """Record to this `MeterProvider` from now on; None: to the one that `opentelemetry.metrics` has, if it has one."""
    global _instruments  # noqa: PLW0603 - one for the process, as OpenTelemetry's own provider is
    with _lock:
        _instruments = Instruments(provider) if provider is not None else None


def is_on() -> bool:
    """Whether anything is recorded. It costs less than a microsecond if not."""
    return _instruments is not None or _find() is not None


def measure(metric: Metric, value: float, attributes: Mapping[str, str] = NONE) -> None:
    """Add to a counter, or note a value of a histogram. It raises nothing, and does nothing without a provider."""
    instruments = _instruments or _find()
    if instruments is not None:
        with suppress(Exception):  # of a provider that is not ours: no message waits for a figure
            instruments.recorder(metric)(value, attributes)


def begin_at_zero(metric: Metric, *attributes: Mapping[str, str]) -> None:
    """Have a counter begin at 0 for each of these sets of attributes.

    A series that is born at its first value has not risen: Prometheus' `rate` and `increase` miss that value.
    """
    for each in attributes or (NONE,):
        measure(metric, 0, each)


@contextmanager
def observed(readers: Mapping[Metric, Read]) -> Iterator[None]:
    """Have these gauges read while the block runs, at each collection."""
    is_on()  # which makes the instruments, long before a process that waits out an outage records anything
    for metric, read in readers.items():
        _readers.setdefault(metric, []).append(read)
    try:
        yield
    finally:
        for metric, read in readers.items():
            _readers[metric].remove(read)


def provider_of_application() -> Any | None:
    """The provider that the application has set with OpenTelemetry's API, or that its environment asks for."""
    api = sys.modules.get(API)
    if api is None:
        return None
    provider = api.get_meter_provider()
    is_stand_in = type(provider).__module__.startswith(API)  # it does nothing, or waits for another one
    return None if is_stand_in else provider


def _find() -> Instruments | None:
    global _instruments  # noqa: PLW0603 - as above
    if (provider := provider_of_application()) is None:
        return None
    with _lock:
        _instruments = _instruments or Instruments(provider)
        return _instruments


def _observations(metric: Metric, _: object) -> list[Any]:
    """The readings of a gauge as the API's observations. One that cannot be read is left out."""
    observation = sys.modules[API].Observation
    readings: list[Any] = []
    for read in tuple(_readers.get(metric, ())):
        with suppress(Exception):  # such as an outage of the database
            readings += [observation(value, attributes) for value, attributes in read()]
    return readings


class BoundedNames:
    """The names that an attribute may have: known ones, and the first of the others up to a bound; then `other`."""

    def __init__(self, known: Iterable[str] = (), *, most: int = MOST_NAMES) -> None:
        self._names = dict.fromkeys(known)
        self._most = len(self._names) + most

    def __call__(self, name: str) -> str:
        """The name, or `other`."""
        if name in self._names:
            return name
        if len(self._names) >= self._most:
            return OTHER
        self._names[name] = None
        return name
