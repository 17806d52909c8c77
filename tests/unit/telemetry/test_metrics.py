"""The seam of metrics: nothing without a provider, everything with one, and never an error."""

import subprocess
import sys
from typing import Any

import pytest

from outboxkit.telemetry import catalogue, metrics
from tests.support.measured import Measured


def test_a_counter_is_added_to(measured: Measured):
    metrics.measure(catalogue.DELIVERIES, 2, {"queue": "billing"})
    metrics.measure(catalogue.DELIVERIES, 3, {"queue": "billing"})
    (point,) = measured.points()["outboxkit.consumer.deliveries"]
    assert (point.value, dict(point.attributes)) == (5, {"queue": "billing"})


def test_a_histogram_has_the_bounds_of_the_catalogue(measured: Measured):
    metrics.measure(catalogue.RELAY_LAG, 0.03)
    (point,) = measured.points()["outboxkit.relay.lag"]
    assert (point.count, point.sum, point.explicit_bounds) == (1, 0.03, catalogue.AGES)


def test_a_gauge_is_read_while_it_is_observed(measured: Measured):
    with metrics.observed({catalogue.IN_FLIGHT: lambda: [(7, {"queue": "billing"})]}):
        (point,) = measured.points()["outboxkit.consumer.in_flight"]
        assert (point.value, dict(point.attributes)) == (7, {"queue": "billing"})
    assert measured.points() == {}


def test_a_gauge_that_cannot_be_read_is_left_out_alone(measured: Measured):
    def fail() -> list[metrics.Reading]:
        raise ConnectionError

    with metrics.observed({catalogue.DEAD_ROWS: fail}), metrics.observed({catalogue.DEAD_ROWS: lambda: [(1, {})]}):
        assert [point.value for point in measured.points()["outboxkit.database.dead_rows"]] == [1]


def test_a_provider_that_fails_stops_nobody():
    class Failing:
        def get_meter(self, _: str) -> Any:
            return self

        def create_observable_gauge(self, *_: Any) -> None:
            pass

        def create_counter(self, *_: Any) -> Any:
            raise RuntimeError

    metrics.use(Failing())
    try:
        metrics.measure(catalogue.DELIVERIES, 1)
    finally:
        metrics.use(None)


def test_names_beyond_the_bound_are_other():
    names = metrics.BoundedNames(["Known"], most=2)
    assert [names(name) for name in ("a", "b", "c", "Known", "a")] == ["a", "b", "other", "Known", "a"]


def run(program: str) -> str:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


SCRAPE = """
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from outboxkit.telemetry import catalogue, metrics, scrape
if {own}:
    api.set_meter_provider(MeterProvider())
assert metrics.is_on() == {own}
metrics.measure(catalogue.DELIVERIES, 1, {{"queue": "billing"}})
scrape.prepare()
metrics.measure(catalogue.DELIVERIES, 2, {{"queue": "billing"}})
api.get_meter("shop").create_counter("shop.orders").add(3)
scrape.text()
print(*(line for line in scrape.text().decode().splitlines() if line.startswith(("outboxkit_", "shop_"))), sep="\\n")
"""


SCRAPED = 'outboxkit_consumer_deliveries_total{queue="billing"} 2.0\nshop_orders_total 3.0\n'


@pytest.mark.parametrize("own", [False, True], ids=["none", "one"])
def test_a_scrape_beside_providers_of_the_application(own: bool):
    """What was recorded before its new reader came is not in the scrape."""
    assert run(SCRAPE.format(own=own)) == SCRAPED


def test_a_scrape_needs_its_extra():
    program = """
import sys
sys.modules["opentelemetry.exporter"] = None
from outboxkit.telemetry import scrape
try:
    scrape.text()
except ModuleNotFoundError as error:
    print(error)
"""
    assert "pip install 'outboxkit[metrics]'" in run(program)
