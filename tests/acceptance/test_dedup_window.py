"""The window in which a duplicate is caught, as an operator meets it: stale messages, forgotten ones, wrong clocks."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from outboxkit import ids
from tests.acceptance.deployment import Deployment
from tests.acceptance.stock import DEPOT, WAYS, Parcel, Stock
from tests.support.polling import eventually

DELAYS = "100ms"
MINUTE = timedelta(minutes=1)
WINDOW = {"OUTBOXKIT_INBOX_RETENTION": "20m", "OUTBOXKIT_MAX_ATTEMPTS": "2"}
EDGE = 15 * MINUTE
"""The age from which a message is stale then."""
ANOTHER_TIME = """
import datetime, os, time

AHEAD = float(os.environ["CLOCK_AHEAD"])
right_time, right_clock = time.time, datetime.datetime


class Kind(type):
    def __instancecheck__(cls, found):
        return isinstance(found, right_clock)


class Clock(right_clock, metaclass=Kind):
    @classmethod
    def now(cls, tz=None):
        return right_clock.fromtimestamp(time.time(), tz)


time.time, datetime.datetime = lambda: right_time() + AHEAD, Clock
"""
"""A sitecustomize.py: everything in Python takes the time from here."""


@pytest.fixture
def stock(deployment: Deployment) -> Stock:
    return Stock(deployment, delays=DELAYS)


def aged(number: int, age: timedelta, *, foreign: bool = False) -> Parcel:
    """A parcel that was sent so long ago, as its UUIDv7 says, or its timestamp."""
    made = datetime.now(UTC) - age
    return Parcel(number, id=f"foreign-{number}", timestamp=made) if foreign else Parcel(number, id=ids.new(at=made))


@pytest.mark.parametrize("ahead", [600, pytest.param(-600, marks=pytest.mark.night)])
def test_only_the_clock_of_the_database_decides(stock: Stock, tmp_path: Path, ahead: int):
    """A consumer ten minutes off finds the same messages stale as any other."""
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_TIME)
    path = stock.deployment.environment["PYTHONPATH"]
    settings = WINDOW | {"PYTHONPATH": f"{tmp_path}:{path}", "CLOCK_AHEAD": str(ahead), "PYTHONWARNINGS": "ignore"}
    stock.declare(**settings)
    young = [aged(1, EDGE - 2 * MINUTE), aged(2, EDGE - 2 * MINUTE, foreign=True), aged(3, -30 * MINUTE)]
    old = [aged(4, EDGE + MINUTE), aged(5, EDGE + MINUTE, foreign=True)]
    stock.arrive([*young, *old])
    consumer = stock.consume(**settings)
    eventually(lambda: len(stock.given_up()) + stock.booked().total() >= 5)
    assert consumer.stop() == 0
    assert stock.booked() == {1: 1, 2: 1, 3: 1}
    assert stock.given_up() == {parcel.id: "stale" for parcel in old}
    said = datetime.fromisoformat(consumer.entries("consumer connected")[0]["timestamp"])
    offset = said.timestamp() - time.time()
    assert abs(offset - ahead) < 120, "its own clock was wrong indeed"


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
    delays = {"OUTBOXKIT_RETRY_DELAYS": "1s,10s,1m,10m", "OUTBOXKIT_INBOX_RETENTION": "1h"}
    refused = stock.deployment.outboxkit("consume", DEPOT, **delays)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    # 1 s, 10 s, 1 min, and six times 10 min until the tenth attempt, and 5 min of skew
    assert line.startswith("outboxkit: OUTBOXKIT_INBOX_RETENTION is 1h, but a message may be tried again for 67m ")
    assert "retention = longest retry window times 2" in line
    assert line.endswith("set it to 3h or more")
    enough = delays | {"OUTBOXKIT_INBOX_RETENTION": "3h"}
    assert stock.deployment.outboxkit("consume", DEPOT, "--drain", **enough).returncode == 0
