"""Everything at once at the consumers: duplicates, SIGKILLs, a database that is killed, poison; then the repair."""

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.stock import ARRIVED, BOOKED, EVERY_WAY, WAYS, Parcel, Stock
from tests.acceptance.worker_process import WorkerProcess
from tests.servers import Server
from tests.support.night import by_night, chance
from tests.support.polling import eventually

MESSAGES = by_night({"together": 5000}, else_={"together": 250})
SINGLY = by_night(2000, else_=200)
POISON_EVERY = by_night(500, else_=40)
KILLS = by_night(15, else_=2)
KINDS = (("undecodable", {"weight": "heavy"}), ("failed", {"fate": "breaks"}), ("rejected", {"fate": "refused"}))
"""The reasons for which messages are given up on, and what these are like."""


@contextmanager
def killed_at_random(start: Callable[[], WorkerProcess], numbers: random.Random) -> Iterator[None]:
    """A process that is killed while it works, and started again, so often; the last one is let live."""
    end = Event()

    def run() -> None:
        for _ in range(KILLS):
            process = start()
            process.wait_for("consumer connected")
            end.wait(numbers.uniform(0, 1.5))
            process.kill()
        process = start()
        process.wait_for("consumer connected")
        end.wait()
        assert process.stop() == 0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            end.set()
        running.result()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_each_effect_happens_once_and_poison_is_repaired(
    on_own_postgresql: Deployment, own_postgresql: Server, way: str
):
    stock = Stock(on_own_postgresql)
    parcels, poison = harvest(MESSAGES.get(way, SINGLY))
    settings = WAYS[way] | {"OUTBOXKIT_MAX_ATTEMPTS": "2", "OUTBOXKIT_LOG_LEVEL": "warning"}
    stock.declare(**settings)
    storm(stock, with_duplicates(parcels, chance("duplicates", way)), poison, own_postgresql, settings)
    harmless = {parcel.number: 1 for parcel in parcels if parcel.id not in poison}
    assert stock.booked() == stock.told() == harmless
    assert stock.given_up() == poison
    stock.assert_nothing_is_left()
    repair(stock, settings)
    assert stock.booked() == {parcel.number: 1 for parcel in parcels}
    assert stock.given_up() == {}
    stock.assert_nothing_is_left()
    assert heard(stock) == stock.booked(), "what the handlers put into the outbox was published, once for each effect"


def harvest(count: int) -> tuple[list[Parcel], dict[str, str]]:
    """Parcels, and the reason for which each poisonous one of them is given up on."""
    parcels, poison = [], {}
    for number in range(1, count + 1):
        reason, traits = KINDS[number // POISON_EVERY % len(KINDS)] if number % POISON_EVERY == 0 else ("", {})
        parcels.append(Parcel(number, **traits))
        if reason:
            poison[parcels[-1].id] = reason
    return parcels, poison


def with_duplicates(parcels: list[Parcel], numbers: random.Random) -> list[Parcel]:
    """All of them, three in ten more than once, in any order."""
    again = numbers.sample(parcels, len(parcels) * 3 // 10)
    sent = parcels + again + again[: len(again) // 4]
    numbers.shuffle(sent)
    return sent


def storm(stock: Stock, sent: list[Parcel], poison: dict[str, str], database: Server, settings: dict[str, str]) -> None:
    """Two consumers that are killed again and again, and a database that is killed once, until nothing is left."""
    effects = len({parcel.id for parcel in sent} - poison.keys())
    stock.arrive(sent[: len(sent) // 2])
    with ExitStack() as killers:
        for number in range(2):
            start = partial(stock.consume, **settings | {"OUTBOXKIT_LOG_LEVEL": "info"})
            killers.enter_context(killed_at_random(start, chance("kills", number)))
        eventually(lambda: stock.booked().total() > effects // 4, seconds=300)
        database.kill()
        stock.arrive(sent[len(sent) // 2 :])
        database.start()
        eventually(lambda: stock.booked().total() >= effects, seconds=600)
        eventually(lambda: stock.given_up().keys() >= poison.keys())
        eventually(lambda: not any(stock.depths().values()))
    killed = [process.wait() for process in stock.deployment.processes]
    assert Counter(killed) == {-signal.SIGKILL: 2 * KILLS, 0: 2}
    stock.drain(**settings)  # what a consumer had not acked, or not handled, when it ended comes once more


def repair(stock: Stock, settings: dict[str, str]) -> None:
    """The handler is mended, and what was given up on goes through it."""
    deployment = stock.deployment
    deployment.broker.bind(BOOKED, queue=f"{deployment.broker.queue}.told")
    mended = settings | {"DEPOT_MENDED": "yes", "OUTBOXKIT_LOG_LEVEL": "info"}
    relay, consumer = deployment.relay(OUTBOXKIT_LOG_LEVEL="info"), stock.consume(**mended)
    open_ = len([row for row in deployment.dead_letters() if row.resolution is None])
    before = stock.booked().total()
    poisoned = len(stock.given_up())
    replayed = deployment.outboxkit("dead", "replay", "--yes", "--all")
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert f"replayed {open_} of {open_} by " in replayed.stdout
    eventually(lambda: stock.booked().total() >= before + poisoned)
    deployment.wait_for_empty_outbox()
    assert [consumer.stop(), relay.stop()] == [0, 0]
    stock.drain(**mended)


def heard(stock: Stock) -> Counter[int]:
    """What those heard who listen to the depot."""
    arrived = stock.deployment.broker.take_all(f"{stock.deployment.broker.queue}.told")
    assert ARRIVED not in {message.properties.type for message in arrived}, "a replay goes to its queue alone"
    return Counter(json.loads(message.body)["number"] for message in arrived)
