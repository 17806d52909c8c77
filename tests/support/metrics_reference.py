"""The reference page of metrics, made from the catalogue: `python -m tests.support.metrics_reference` writes it."""

from pathlib import Path

from outboxkit.telemetry.catalogue import ATTRIBUTES, CATALOGUE, Kind, Metric

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

Each process has the metrics of what it runs, and the gauges of the tables. [How to turn them
on](../how-to/measure-with-metrics.md). The first name is OpenTelemetry's, the second one Prometheus'. Those that begin
with `messaging.` follow [OpenTelemetry's conventions for
messaging](https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/).

Counters begin at 0 when their process starts, for all attributes that are known by then. These are destinations,
queues, handlers with their types, outcomes and reasons. A message type that a relay meets begins at 0 then. A gauge has
no series if there is nothing to read, such as the age of a pause if nothing is paused. A histogram has none before its
first value.
"""
ATTRIBUTES_HEAD = """
## Attributes

All values are bounded. None is an id, a key or an address. In Prometheus a dot of a name is an underscore.

| attribute | values |
|---|---|
"""


def row(metric: Metric) -> str:
    """A metric's line in the table."""
    names = f"`{metric.name}` `{metric.prometheus_name}`"
    kind = f"{metric.kind}, {metric.unit.strip('{}')}" if metric.unit != "1" else str(metric.kind)
    attributes = ", ".join(f"`{name}`" for name in metric.attributes)
    buckets = (
        f" Buckets: {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.kind is Kind.HISTOGRAM else ""
    )
    return f"| {names} | {kind} | {attributes} | {metric.description}{buckets} |"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group, metrics in CATALOGUE.items():
        parts.append(f"\n## {group}\n\n| metric | kind, unit | attributes | meaning |\n|---|---|---|---|\n")
        parts += [f"{row(metric)}\n" for metric in metrics]
    parts.append(ATTRIBUTES_HEAD)
    parts += [f"| `{name}` | {values} |\n" for name, values in sorted(ATTRIBUTES.items())]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
