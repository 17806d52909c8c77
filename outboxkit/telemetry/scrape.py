"""The text of a scrape, in Prometheus' format: what this process has recorded, and its gauges as of now."""

from collections.abc import Iterable, Mapping
from functools import cache
from threading import Lock
from typing import Any

from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.telemetry import metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "process_number"
_lock = Lock()


def prepare() -> None:
    """Have what is recorded from now on collected for scrapes. Call it when the process starts.

    An application's own `MeterProvider` gets one more reader. Without one, outboxkit makes one and sets it, so that
    metrics that handlers record through OpenTelemetry's API are in the scrape, too.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
        ConfigurationError: the application's provider is not one of OpenTelemetry's SDK.
    """
    with _lock:
        _registry()


def text() -> bytes:
    """The metrics of this process, and of the process itself, such as its memory. `CONTENT_TYPE` is its type.

    It may wait for the database for a few seconds: call it in a thread. Scrapes of several threads come one by one.
    """
    with _lock:
        registry, generate = _registry()
        written: bytes = generate(registry)
        return written


def merged(scrapes: Mapping[str, bytes]) -> bytes:
    """One text of the scrapes of several processes, each with its name as the label `process_number`."""
    from prometheus_client import CollectorRegistry, Metric, generate_latest  # noqa: PLC0415 - an extra
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - as above

    metrics_by_name: dict[str, Any] = {}
    for name, scraped in scrapes.items():
        for metric in text_string_to_metric_families(scraped.decode()):
            own = metrics_by_name.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            own.samples += [each._replace(labels={**each.labels, LABEL: name}) for each in metric.samples]

    class Collected:
        """Collects them."""

        def collect(self) -> Iterable[Any]:
            """The metrics."""
            return metrics_by_name.values()

    registry: Any = CollectorRegistry()
    registry.register(Collected())
    written: bytes = generate_latest(registry)
    return written


@cache
def _registry() -> tuple[Any, Any]:
    """The registry of this process's one reader, and the function that writes it."""
    with needs_extra("A scrape"):  # first what only this extra brings: it is the one that the error then names
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415 - an extra
    with needs_extra("A scrape"):
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 - an extra
        from opentelemetry.metrics import set_meter_provider  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    provider = metrics.provider_of_application()
    if provider is None:
        set_meter_provider(MeterProvider([reader]))
    elif isinstance(provider, MeterProvider):
        provider.add_metric_reader(reader)
    else:
        raise ConfigurationError(
            f"the application's MeterProvider is {type(provider).__name__}; one of opentelemetry.sdk.metrics is "
            "accepted, to which a reader can be added. Or set none: outboxkit sets one"
        )
    ProcessCollector(registry=registry)
    return registry, generate_latest
