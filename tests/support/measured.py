"""What is measured while a test runs, by OpenTelemetry's own SDK."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from outboxkit.telemetry import metrics
from outboxkit.telemetry.catalogue import METRICS, Kind, Metric

KNOWN = {metric.name: metric for metric in METRICS}


class Measured:
    """The metrics of this process since the test began."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader
        self._began = time.perf_counter()

    def points(self) -> dict[str, list[Any]]:
        """Data points by the metric's name; each has the attributes of the catalogue and no others.

        No duration is longer than the test has been running.
        """
        collected = self._reader.get_metrics_data()
        resources = collected.resource_metrics if collected is not None else ()
        found = {
            each.name: list(each.data.data_points)
            for resource in resources
            for scope in resource.scope_metrics
            for each in scope.metrics
        }
        for name, points in found.items():
            for point in points:
                assert set(point.attributes) <= set(KNOWN[name].attributes), name
                if name.endswith(".duration"):
                    assert 0 <= point.min <= point.max <= time.perf_counter() - self._began, name
        return found

    def of(self, metric: Metric, *names: str, begun: bool = False) -> dict[Any, float]:
        """Values of a metric, of a histogram its counts, by the values of these attributes: one or several.

        A counter that has counted nothing is left out, unless `begun`.
        """
        found: dict[Any, float] = {}
        for point in self.points().get(metric.name, []):
            if metric.kind is Kind.COUNTER and not point.value and not begun:
                continue
            values = tuple(point.attributes.get(name, "") for name in names)
            key = values if len(values) > 1 else "".join(map(str, values))
            found[key] = found.get(key, 0) + (point.count if hasattr(point, "count") else point.value)
        return found


@contextmanager
def measuring() -> Iterator[Measured]:
    """Have this process measured while the block runs."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics.use(provider)
    try:
        yield Measured(reader)
    finally:
        metrics.use(None)
        provider.shutdown()
