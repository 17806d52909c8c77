"""`outboxkit consume --ordered`: whatever fails and whoever dies, the effects of each key come in its order."""

import random
from pathlib import Path

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.stock import EVERY_WAY, WAYS, Parcel, Stock
from tests.acceptance.worker_process import WorkerProcess
from tests.support.night import by_night, chance
from tests.support.polling import eventually

KEYS, EACH = 50, by_night(24, else_=12)
DELAYS = "100ms,200ms"
ONE_BY_DAY = [EVERY_WAY[0], *(pytest.param(way, marks=pytest.mark.night) for way in list(WAYS)[1:])]
PATIENT = {"OUTBOXKIT_MAX_ATTEMPTS": "1000"}


@pytest.fixture
def stock(deployment: Deployment) -> Stock:
    return Stock(deployment, delays=DELAYS)


@pytest.mark.parametrize("way", ONE_BY_DAY)
def test_each_key_is_in_order_through_failures_and_a_kill(stock: Stock, way: str):
    """One parcel in twelve fails, some of these several times; the active one of two consumers is killed."""
    parcels = shuffled(chance("ordered", way), EACH)
    expected = {f"k{key}": list(range(EACH)) for key in range(KEYS)}
    settings = PATIENT | WAYS[way]
    stock.declare("--ordered", **settings)
    consumers = [stock.consume("--ordered", **settings) for _ in range(2)]
    for consumer in consumers:
        consumer.wait_for("consumer connected")
    stock.arrive(parcels[: len(parcels) // 2])
    eventually(lambda: stock.booked().total() > len(parcels) // 4)
    active = eventually(lambda: [each for each in consumers if each.entries("handler failed, will be retried")])
    assert len(active) == 1, "the other one stands by"
    active[0].kill()
    stock.arrive(parcels[len(parcels) // 2 :])
    (second,) = (each for each in consumers if each is not active[0])
    eventually(lambda: stock.booked().total() >= len(parcels))
    assert stock.booked_by_key() == expected
    stock.assert_nothing_is_left()
    assert second.stop() == 0
    assert second.entries("handler failed, will be retried"), "it took over"
    assert stock.booked_by_key() == expected
    assert stock.given_up() == {}


@pytest.mark.parametrize("way", ONE_BY_DAY)
def test_each_key_is_in_order_through_stops(stock: Stock, way: str):
    """Each consumer is stopped with a backlog, and another one stands by."""
    parcels = shuffled(chance("stopped", way), EACH)
    settings = PATIENT | WAYS[way]
    stock.declare("--ordered", **settings)
    stock.arrive(parcels)
    for part in by_night((5, 4, 3), else_=(4,)):
        consumer, standby = [stock.consume("--ordered", **settings) for _ in range(2)]
        for each in (consumer, standby):
            each.wait_for("consumer connected")
        eventually(lambda part=part: stock.booked().total() > len(parcels) // part)
        assert (consumer.stop(), standby.stop()) == (0, 0)
    last = stock.consume("--ordered", **settings)
    last.wait_for("consumer connected")
    eventually(lambda: stock.booked().total() >= len(parcels))
    assert last.stop() == 0
    stock.drain("--ordered", **settings)  # a message that is acked while its consumer ends may come once more
    assert stock.booked_by_key() == {f"k{key}": list(range(EACH)) for key in range(KEYS)}
    stock.assert_nothing_is_left()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_other_keys_go_on_while_one_fails(stock: Stock, tmp_path: Path, way: str):
    cleared = tmp_path / "cleared"
    settings = PATIENT | WAYS[way] | {"DEPOT_CLEARED": str(cleared)}
    stock.declare("--ordered", **settings)
    stock.arrive([Parcel(number, "held" if number == 3 else "", key="stuck") for number in range(10)])
    stock.arrive(shuffled(chance("others", way), 4))
    consumer = stock.consume("--ordered", **settings)
    eventually(lambda: stock.booked().total() >= 3 + 4 * KEYS)
    eventually(lambda: len(attempts(consumer)) >= 3)
    found = stock.booked_by_key()
    assert found.pop("stuck") == [0, 1, 2]
    assert found == {f"k{key}": list(range(4)) for key in range(KEYS)}
    cleared.touch()
    eventually(lambda: stock.booked().total() >= 10 + 4 * KEYS)
    assert consumer.stop() == 0
    assert stock.booked_by_key()["stuck"] == list(range(10))
    stock.assert_nothing_is_left()
    assert attempts(consumer)[:3] == [1, 2, 3]


def attempts(consumer: WorkerProcess) -> list[int]:
    """The attempts of the message that is held that have failed so far."""
    said = consumer.entries("handler failed, will be retried")
    return [entry["attempt"] for entry in said if "cleared" in entry["error"]]


def test_a_key_whose_message_is_given_up_goes_on_behind_it(stock: Stock):
    settings = {"OUTBOXKIT_MAX_ATTEMPTS": "3"}
    stock.declare("--ordered", **settings)
    parcels = [Parcel(number, "breaks" if number == 2 else "", key="k") for number in range(5)]
    stock.arrive(parcels)
    consumer = stock.consume("--ordered", **settings)
    eventually(lambda: stock.booked().total() >= 4)
    assert consumer.stop() == 0
    assert stock.booked_by_key() == {"k": [0, 1, 3, 4]}
    assert stock.given_up() == {parcels[2].id: "failed"}
    assert stock.deployment.dead_letters()[0].attempts == 3
    stock.assert_nothing_is_left()


def test_attempts_are_counted_across_a_restart(stock: Stock):
    """A failing message waits in the process; the next process goes on counting where the last one was killed."""
    settings = {"OUTBOXKIT_MAX_ATTEMPTS": "6"}
    stock.declare("--ordered", **settings)
    parcel = Parcel(1, "breaks", key="k")
    stock.arrive([parcel])
    first = stock.consume("--ordered", **settings)
    first.wait_for("handler failed, will be retried", times=2)
    first.kill()
    second = stock.consume("--ordered", **settings)
    assert eventually(stock.given_up) == {parcel.id: "failed"}
    assert second.stop() == 0
    attempts = [entry["attempt"] for one in (first, second) for entry in one.entries("handler failed, will be retried")]
    assert attempts == [1, 2, 3, 4, 5]
    assert stock.deployment.dead_letters()[0].attempts == 6
    stock.assert_nothing_is_left()


def shuffled(numbers: random.Random, each: int) -> list[Parcel]:
    """Parcels of all keys in random turns, in order within each; a few of them stumble."""
    turns = [key for key in range(KEYS) for _ in range(each)]
    numbers.shuffle(turns)
    places = [iter(range(each)) for _ in range(KEYS)]
    fates = ["stumbles", *[""] * 11]
    return [Parcel(next(places[key]), numbers.choice(fates), key=f"k{key}") for key in turns]
