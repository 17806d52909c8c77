"""The window in which a duplicate is caught, as an operator meets it: stale messages, forgotten ones, wrong clocks."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from outboxkit import ids
from tests.acceptance.deployment import Deployment
from tests.acceptance.stock import DEPOT, WAYS, Parcel, Stock

DELAYS = "100ms"
MINUTE = timedelta(minutes=1)
WINDOW = {"OUTBOXKIT_INBOX_RETENTION": "20m", "OUTBOXKIT_MAX_ATTEMPTS": "2"}
EDGE = 15 * MINUTE
"""The age from which a message is stale then."""


@pytest.fixture
def stock(deployment: Deployment) -> Stock:
    return Stock(deployment, delays=DELAYS)


def aged(number: int, age: timedelta, *, foreign: bool = False) -> Parcel:
    """A parcel that was sent so long ago, as its UUIDv7 says, or its timestamp."""
    made = datetime.now(UTC) - age
    return Parcel(number, id=f"foreign-{number}", timestamp=made) if foreign else Parcel(number, id=ids.new(at=made))


def test_a_stale_message_is_handled_once_when_an_operator_accepts_it(stock: Stock):
    settings = WINDOW | WAYS["together"]
    stock.declare(**settings)
    parcels = [aged(1, 2 * EDGE), aged(2, 2 * EDGE, foreign=True)]
    stock.arrive([*parcels, *parcels])
    stock.drain(**settings)
    assert stock.given_up() == {parcel.id: "stale" for parcel in parcels}
    refused = stock.deployment.outboxkit("dead", "replay", "--yes", "--all", **settings)
    assert (refused.returncode, stock.deployment.pending()) == (3, 0)
    assert "add --accept-stale" in refused.stdout
    for _ in range(2):  # a second time is once too often, and changes nothing
        stock.deployment.outboxkit("dead", "replay", "--yes", "--all", "--accept-stale", **settings)
        stock.deployment.outboxkit("relay", "--drain")
        stock.drain(**settings)
        assert stock.booked() == {1: 1, 2: 1}
    assert stock.given_up() == {}


def test_a_duplicate_that_comes_after_its_row_was_forgotten_is_stale(stock: Stock):
    """The retention is crossed between two deliveries of a message; in between `prune` has made the inbox forget it."""
    stock.declare(**WINDOW)
    parcel = aged(1, timedelta(days=3))
    stock.arrive([parcel])
    assert stock.drain(**WINDOW | {"OUTBOXKIT_INBOX_RETENTION": "7d"}) == "processed 1\n"
    stock.arrive([parcel])
    assert stock.drain(**WINDOW | {"OUTBOXKIT_INBOX_RETENTION": "7d"}) == "duplicate 1\n"
    with stock.deployment.engine.begin() as connection:
        connection.execute(text("UPDATE outboxkit_inbox SET processed_at = processed_at - interval '2 days'"))
    assert stock.deployment.outboxkit("prune", **WINDOW).returncode == 0
    with stock.deployment.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one() == 0
    stock.arrive([parcel])
    assert stock.drain(**WINDOW) == "stale 1\n"
    assert stock.booked() == {1: 1}


def test_a_retention_shorter_than_the_retry_delays_is_refused_at_the_start(stock: Stock):
    short = {"OUTBOXKIT_RETRY_DELAYS": "1s,10s,1m,10m", "OUTBOXKIT_INBOX_RETENTION": "1h"}
    refused = stock.deployment.outboxkit("consume", DEPOT, **short)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("set it to 3h or more\n")
