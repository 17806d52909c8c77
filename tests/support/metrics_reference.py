"""The reference page of metrics, made from the catalogue: `python -m tests.support.metrics_reference` writes it."""

from collections.abc import Mapping
from pathlib import Path

from outboxkit.telemetry import catalogue
from outboxkit.telemetry.catalogue import CATALOGUE, Metric

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

Each process has the metrics of what it runs, and the gauges of the tables. [How to turn them
on](../how-to/measure-with-metrics.md). The first name is OpenTelemetry's, the second one Prometheus'. Those that begin
with `messaging.` follow [OpenTelemetry's conventions for
messaging](https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/).

Counters begin at 0 when their process starts, for all attributes that are known by then. A gauge has no series if there
is nothing to read, such as the age of a pause if nothing is paused. A histogram has none before its first value.
"""
ATTRIBUTES_HEAD = """
## Attributes

All values are bounded. None is an id, a key or an address. In Prometheus a dot of a name is an underscore.

| attribute | values |
|---|---|
"""


ATTRIBUTES: Mapping[str, str] = {
    "decision": "`made`, `remembered`, `skipped`, `repeated`, `busy`, or `failed` if the call raised an error",
    "destination": "`default`, or the name of an outside system; of the tables, the first 20 by name",
    catalogue.ERROR: "of a sent message, why it was not confirmed: `unroutable`, `rejected`, `postponed` or `unknown`. "
    "For a duration, the class of the error. Absent if there was none",
    "handler": "a handler of this consumer; `several` for a batch of more than one. Empty if no handler is to blame",
    catalogue.ADDRESS: "the exchange for the relay, the queue for the consumer; the destination's name if there is no "
    "exchange",
    catalogue.OPERATION: "`publish` or `process`",
    catalogue.SYSTEM: "`rabbitmq`; or the scheme of the address, such as `http` or `memory`; `none` if there is no "
    "address",
    "outcome": "of a relay: `published`, `unroutable`, `rejected`, `postponed`, `discarded`, `dead`. Of a delivery: "
    "`processed`, `duplicate`, `retried`, `dead`, `stale`, `ignored`. Of a request: `fresh`, `replayed`, "
    "`in progress`, `mismatch`, `refused`",
    "queue": "the consumer's queue; of a length also its retry queues and its dead queue",
    "reason": "of a dead letter, as `outboxkit dead list` shows it",
    "server": "`database` or `broker`",
    "side": "`outbox` or `inbox`",
    "state": "`ready`; `waiting` for a time, for a retry, or behind a message that does; `parked` behind a dead letter",
    "step": "`claim`, `publish`, `settle`",
    "type": "the message type. A relay tells the first 100 apart, a consumer those that it has handlers for; "
    "all others are `other`",
}
"""The values of each attribute, all of them bounded: never an id, a key or an address."""


def row(metric: Metric) -> str:
    """A metric's line in the table."""
    names = f"`{metric.name}` `{metric.prometheus_name}`"
    kind = f"{metric.kind}, {metric.unit.strip('{}')}" if metric.unit != "1" else str(metric.kind)
    attributes = ", ".join(f"`{name}`" for name in metric.attributes)
    return f"| {names} | {kind} | {attributes} | {metric.description} |"


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
