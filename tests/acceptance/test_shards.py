"""`outboxkit consume --ordered --shards N`: processes share a queue by key, and their number changes under way."""

from pathlib import Path

import pytest
from sqlalchemy import select, update

from outboxkit import tables
from tests.acceptance.deployment import Deployment
from tests.acceptance.stock import BOOKED, Parcel, Stock
from tests.acceptance.test_ordered_consumer import DELAYS, KEYS, PATIENT, shuffled
from tests.acceptance.worker_process import WorkerProcess
from tests.servers import OwnServer
from tests.support.night import by_night, chance
from tests.support.polling import eventually

EACH = by_night(40, else_=10)
SPLIT = ("--ordered", "--shards", "3")


@pytest.fixture
def stock(deployment: Deployment) -> Stock:
    deployment.environment["OUTBOXKIT_PUBLISH_TIMEOUT"] = "1s"  # a move waits for so long
    return Stock(deployment, delays=DELAYS)


def consumed(process: WorkerProcess) -> list[str]:
    """The queues that a process consumes, as it said last."""
    entries = process.entries("shards shared")
    return entries[-1]["consumed"] if entries else []


def test_keys_stay_in_order_from_one_queue_to_three_shards_and_back_whoever_is_killed(stock: Stock):
    """A part of the parcels arrives before each step, and the rest of the part behind it."""
    parcels = shuffled(chance("shards"), EACH)
    size = len(parcels) // 7
    parts = [parcels[first : first + size] for first in range(0, len(parcels), size)]
    stock.declare("--ordered")
    stock.arrive(parts[0])
    alone = stock.consume("--ordered", **PATIENT)
    eventually(lambda: stock.booked().total() > len(parts[0]) // 10)
    alone.kill()

    split = [stock.consume(*SPLIT, **PATIENT) for _ in range(3)]
    eventually(lambda: any(each.entries("old shards are emptied first") for each in split))
    stock.arrive(parts[1])
    eventually(lambda: sorted(map(len, map(consumed, split))) == [1, 1, 2])
    stock.arrive(parts[2])
    split[0].kill()
    stock.arrive(parts[3])
    eventually(lambda: sorted(map(len, map(consumed, split[1:]))) == [2, 2])
    eventually(lambda: stock.booked().total() >= sum(map(len, parts[:4])))
    stock.arrive(parts[4])
    assert [each.stop() for each in split[1:]] == [0, 0]

    stock.arrive(parts[5])
    back = [stock.consume("--ordered", "--shards", "1", **PATIENT) for _ in range(2)]
    eventually(lambda: any(each.entries("old shards are emptied first") for each in back))
    for part in parts[6:]:
        stock.arrive(part)
    eventually(lambda: stock.booked().total() >= len(parcels))
    assert [each.stop() for each in back] == [0, 0]
    assert stock.booked_by_key() == {f"k{key}": list(range(EACH)) for key in range(KEYS)}
    assert stock.given_up() == {}
    assert stock.suspected() == 0


@pytest.mark.night
def test_keys_stay_in_order_and_nothing_is_lost_when_the_whole_broker_restarts(
    on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer
):
    """Messages wait in the shards when it goes down, and more of their keys come when it is back."""
    stock, broker = Stock(on_own_rabbitmq, delays=DELAYS), on_own_rabbitmq.broker
    parcels = shuffled(chance("restarts"), EACH)
    size = len(parcels) // 5
    parts = iter([parcels[first : first + size] for first in range(0, len(parcels), size)])
    stock.declare(*SPLIT)
    broker.bind(BOOKED, queue=f"{broker.queue}-booked", arguments={})
    broker.disconnect()
    relay = on_own_rabbitmq.relay(OUTBOXKIT_LOG_LEVEL="info")
    consumers = list[WorkerProcess]()
    for end in (own_rabbitmq.kill, own_rabbitmq.stop):
        for each in consumers:
            each.kill()
        stock.add(next(parts))
        on_own_rabbitmq.wait_for_empty_outbox()
        end()
        own_rabbitmq.start()
        broker.bind(BOOKED, queue=f"{broker.queue}-booked", arguments={})  # a killed broker may forget a binding
        broker.disconnect()
        stock.add(next(parts))
        already = stock.booked().total()
        consumers = [stock.consume(*SPLIT, **PATIENT) for _ in range(2)]
        eventually(lambda already=already: stock.booked().total() > already)
    own_rabbitmq.stop()
    stock.add(next(parts))
    own_rabbitmq.start()
    eventually(lambda: stock.booked().total() >= len(parcels), seconds=600)
    assert [each.stop() for each in (relay, *consumers)] == [0, 0, 0]
    assert stock.booked_by_key() == {f"k{key}": list(range(EACH)) for key in range(KEYS)}
    assert stock.given_up() == {}


def test_a_process_with_another_number_waits_until_the_others_have_ended(stock: Stock):
    stock.declare(*SPLIT)
    first = stock.consume(*SPLIT)
    first.wait_for("consumer connected")
    other = stock.consume("--ordered", "--shards", "2")
    waiting = other.wait_for("waiting: other processes are for another number of shards")
    assert "run with --shards 3, and this one has --shards 2" in waiting["reason"]
    assert waiting["cure"] == "stop them, or start this one with --shards 3"
    assert "is to change to 2: it waits for the end of 1 process that runs with 3" in " ".join(
        stock.deployment.outboxkit("status").stdout.split()
    )
    stock.arrive([Parcel(1, key="k")])
    eventually(lambda: stock.booked().total() == 1)
    assert first.stop() == 0
    other.wait_for("the number of shards changes")
    stock.arrive([Parcel(2, key="k")])
    eventually(lambda: stock.booked_by_key() == {"k": [1, 2]})
    assert other.stop() == 0


@pytest.mark.night
def test_a_change_that_a_crash_interrupted_is_finished_by_whoever_comes(stock: Stock):
    """Killed with its change written, and with old messages left; the next ones are for the old number again."""
    stock.declare("--ordered")
    stock.arrive([Parcel(number, "stumbles", key="k") for number in range(8)])
    split = stock.consume(*SPLIT, **PATIENT)
    split.wait_for("the number of shards changes")
    split.kill()
    stock.arrive([Parcel(number, key="k") for number in range(8, 12)])
    back = stock.consume("--ordered", "--shards", "1", **PATIENT)
    eventually(lambda: stock.booked().total() >= 12)
    back.wait_for("shards shared")
    stock.arrive([Parcel(number, key="k") for number in range(12, 16)])
    eventually(lambda: stock.booked().total() >= 16)
    back.wait_for("consumer connected", times=5)  # of the queue, of its three shards, and of the queue again
    eventually(lambda: not any(stock.depths().values()))
    assert back.stop() == 0
    assert stock.booked_by_key() == {"k": list(range(16))}
    assert {name: depth for name, depth in stock.depths().items() if depth} == {}


@pytest.mark.night
def test_a_message_that_keeps_failing_holds_up_its_own_key_alone_while_shards_change(stock: Stock, tmp_path: Path):
    """It fails from one queue to three shards; others of its key arrive in each, and processes are killed."""
    cleared = tmp_path / "cleared"
    settings = PATIENT | {"DEPOT_CLEARED": str(cleared)}
    stock.declare("--ordered")
    stock.arrive([Parcel(0, "held", key="k0"), *(Parcel(0, key=f"k{key}") for key in range(1, 20))])
    split = [stock.consume(*SPLIT, **settings) for _ in range(2)]
    eventually(lambda: any(each.entries("keys wait for old shards") for each in split))
    stock.arrive([Parcel(1, key=f"k{key}") for key in range(20)])
    eventually(lambda: stock.booked().total() == 38)
    for each in split:
        each.kill()
    again = stock.consume(*SPLIT, **settings)
    stock.arrive([Parcel(2, key=f"k{key}") for key in range(20)])
    eventually(lambda: stock.booked().total() == 57)
    cleared.touch()
    eventually(lambda: stock.booked().total() == 60)
    eventually(lambda: len(consumed(again)) == 4)
    assert again.stop() == 0
    assert stock.booked_by_key() == {f"k{key}": [0, 1, 2] for key in range(20)}
    assert {name: depth for name, depth in stock.depths().items() if depth} == {}


def test_a_plain_consumer_of_a_queue_that_is_split_is_refused(stock: Stock):
    stock.declare(*SPLIT)
    refused = stock.deployment.outboxkit("consume", "tests.acceptance.depot", "--ordered", "--drain")
    assert refused.returncode == 2
    assert "is split into shards: start with --shards 3, or with --shards 1" in refused.stderr
    assert stock.drain("--ordered", "--shards", "1") == "nothing to do\n"
    stock.declare("--ordered")


@pytest.mark.night
def test_shards_wait_for_a_plain_consumer_and_what_it_has_comes_first(stock: Stock):
    stock.declare("--ordered")
    plain = stock.consume("--ordered", **PATIENT)
    plain.wait_for("consumer connected")
    split = stock.consume(*SPLIT, **PATIENT)
    split.wait_for("waiting: other processes are for another number of shards")
    stock.arrive([Parcel(number, "stumbles", key="k") for number in range(6)])
    plain.kill()
    split.wait_for("old shards are emptied first")
    stock.arrive([Parcel(number, key="k") for number in range(6, 12)])
    eventually(lambda: stock.booked().total() >= 12)
    assert split.stop() == 0
    assert stock.booked_by_key() == {"k": list(range(12))}


@pytest.mark.night
def test_a_split_queue_with_the_handlers_of_another_one_is_told_of_once(stock: Stock):
    stock.declare("--ordered")
    with stock.deployment.engine.begin() as connection:
        connection.execute(update(tables.handler).values(queue="another"))
    split = stock.consume(*SPLIT)
    split.wait_for("consumer connected", times=4)
    assert split.stop() == 0
    warned = [each for each in split.entries() if each["level"] == "warning"]
    assert [each["other_queues"] for each in warned] == [["another"]]
    with stock.deployment.engine.connect() as connection:
        known = set(connection.scalars(select(tables.handler.c.queue)))
    assert known == {"another", stock.deployment.broker.queue}
