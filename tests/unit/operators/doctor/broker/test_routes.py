"""Which queues get a message, by exchanges and bindings."""

import pytest

from outboxkit.operators.doctor.broker.checks import routed
from outboxkit.operators.doctor.broker.snapshot import ApiReports, Bound, ExchangeReport

EXCHANGES = (
    ExchangeReport("shop", "topic", {"alternate-exchange": "rest"}),
    ExchangeReport("plain", "topic"),
    ExchangeReport("", "direct"),
    ExchangeReport("rest", "fanout"),
    ExchangeReport("exact", "direct", []),
    ExchangeReport("headers", "headers"),
)
BINDINGS = (
    Bound("shop", "billing", "queue", "Order*"),
    Bound("shop", "mails", "queue", "orders.#"),
    Bound("shop", "exact", "exchange", "exact.*"),
    Bound("exact", "one", "queue", "exact.one"),
    Bound("exact", "shop", "exchange", "exact.loop"),
    Bound("rest", "all", "queue", "whatever"),
    Bound("headers", "any", "queue", ""),
    Bound("", "billing", "queue", "billing"),
)
REPORTS = ApiReports(bindings=BINDINGS, exchanges={each.name: each for each in EXCHANGES})


@pytest.mark.parametrize(
    ("exchange", "key", "queues"),
    [
        ("shop", "Order*", {"billing"}),
        ("shop", "orders.eu.paid", {"mails"}),
        ("shop", "orders", {"mails"}),
        ("shop", "exact.one", {"one"}),
        ("shop", "exact.two", {"all"}),
        ("shop", "exact.loop", {"all"}),
        ("shop", "Unknown", {"all"}),
        ("plain", "Unknown", set()),
        ("missing", "Unknown", set()),
        ("headers", "Unknown", {"any"}),
        ("", "billing", {"billing"}),
        ("", "other", set()),
    ],
)
def test_routes(exchange: str, key: str, queues: set[str]):
    assert routed(REPORTS, exchange, key) == queues
