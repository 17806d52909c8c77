"""The catalogue of metrics: names, units and attributes as the conventions want them, and its page."""

import re

import pytest

from outboxkit.telemetry.catalogue import DEAD_REASONS, METRICS, Kind, Metric
from tests.support.metrics_reference import ATTRIBUTES, PAGE, page

UNITS = re.compile(r"s|1|\{[a-z]+\}")


def test_the_reference_page_is_made_from_the_catalogue():
    assert PAGE.read_text() == page(), "run `python -m tests.support.metrics_reference`"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_whole(metric: Metric):
    assert metric.name.startswith(("outboxkit.", "messaging."))
    assert UNITS.fullmatch(metric.unit)
    assert metric.description.endswith(".")
    assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.bounds) == sorted(metric.bounds)
    assert set(metric.attributes) <= ATTRIBUTES.keys()


def test_the_reasons_of_dead_letters_are_those_that_the_page_explains():
    page_ = (PAGE.parents[1] / "how-to" / "handle-dead-letters.md").read_text()
    explained = set(re.findall(r"^\| (outbox|inbox), `([a-z ]+)`", page_, re.MULTILINE))
    assert explained == {(side, reason) for side, reasons in DEAD_REASONS.items() for reason in reasons}
