"""A message that kills its process: it ends among the dead letters, and what was prefetched with it is handled."""

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.stock import EVERY_WAY, WAYS, Parcel, Stock
from tests.servers import OwnServer

PREFETCHED = 64
"""What the broker pushes ahead to a consumer with a transaction for each message."""
KEYS = 5
MAX_CRASHES = 3
LIMIT = 20
"""RabbitMQ 4 drops a message at this return, if nobody says otherwise."""


BY_NIGHT = [
    pytest.param(way, fate, marks=pytest.mark.night) for way, fate in (("singly", "faults"), ("in the loop", "aborts"))
]


class Minefield:
    """Parcels, some of which explode, at a supervised consumer that prefetches all of them at once."""

    def __init__(self, deployment: Deployment, folder: Path, way: str, **settings: str) -> None:
        self.stock = Stock(deployment)
        self._explosions = folder / "explosions"
        self._settings = WAYS[way] | {
            "DEPOT_EXPLOSIONS": str(self._explosions),
            **settings,
        }

    def cross(self, fates: dict[int, str], *, count: int = PREFETCHED) -> int:
        """Consume parcels, these with these fates, until all but those are booked; how often the process died."""
        parcels = [Parcel(number, fates.get(number, ""), key=f"k{number % KEYS}") for number in range(count)]
        self.stock.declare(**self._settings)
        self.stock.arrive(parcels)
        deaths = self.stock.supervise(
            lambda: len(self.stock.booked()) >= count - len(fates) and len(self.stock.given_up()) >= len(fates),
            **self._settings,
        )
        harmless = {parcel.number: 1 for parcel in parcels if parcel.number not in fates}
        assert self.stock.booked() == self.stock.told() == harmless
        assert self.stock.given_up() == {parcels[number].id: "crash" for number in fates}
        self.stock.assert_nothing_is_left()
        return deaths

    def explosions(self) -> Counter[int]:
        """How often the handler of each was called."""
        return Counter(map(int, self._explosions.read_text().split()))


@pytest.mark.parametrize(
    ("way", "fate"), [("singly", "aborts"), ("together", "aborts"), ("singly", "exits"), *BY_NIGHT]
)
def test_one_of_many_that_are_prefetched_kills_the_process(deployment: Deployment, tmp_path: Path, way: str, fate: str):
    minefield = Minefield(deployment, tmp_path, way)
    deaths = minefield.cross({PREFETCHED // 2: fate})
    assert minefield.explosions() == {PREFETCHED // 2: 1 + MAX_CRASHES}, "unsuspected, and then as often as recorded"
    assert deaths == 1 + MAX_CRASHES
    (letter,) = minefield.stock.deployment.dead_letters()
    assert letter.error == f"{MAX_CRASHES} times it was started, and the process ended before its handler did"


def test_two_kill_it_each_for_itself(deployment: Deployment, tmp_path: Path):
    minefield = Minefield(deployment, tmp_path, "singly")
    deaths = minefield.cross({60: "killed", 61: "killed"})
    first, second = sorted(minefield.explosions().values())
    assert (first in (MAX_CRASHES, 1 + MAX_CRASHES), second) == (True, 1 + MAX_CRASHES), (
        "only one death was unsuspected"
    )
    assert deaths == 1 + 2 * MAX_CRASHES


@pytest.mark.parametrize("way", EVERY_WAY)
def test_in_order_its_key_goes_on_behind_it(deployment: Deployment, tmp_path: Path, way: str):
    minefield = Minefield(deployment, tmp_path, way, OUTBOXKIT_ORDERED="true")
    assert minefield.cross({10: "killed"}, count=50) == 1 + MAX_CRASHES
    assert minefield.stock.booked_by_key() == {
        f"k{key}": [number for number in range(key, 50, KEYS) if number != 10] for key in range(KEYS)
    }


@pytest.mark.night
def test_a_broker_that_drops_what_came_back_too_often_drops_nothing(
    on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer, tmp_path: Path
):
    """Seven that kill the process three times or more stand before those that did nothing: these come back too."""
    policy = ("--apply-to", "queues", "returns", ".*", f'{{"delivery-limit":{LIMIT}}}')
    own_rabbitmq.execute("rabbitmqctl", "set_policy", *policy)
    try:
        minefield = Minefield(on_own_rabbitmq, tmp_path, "together")
        assert minefield.cross(dict.fromkeys(range(7), "killed"), count=60) > LIMIT
    finally:
        own_rabbitmq.execute("rabbitmqctl", "clear_policy", "returns")
