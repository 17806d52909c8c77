"""One process that consumes two queues: stopped, killed, and cut off from its broker in the middle of its work."""

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.depot import GATE
from tests.acceptance.stock import Parcel, Stock
from tests.acceptance.worker_process import WorkerProcess
from tests.support.night import by_night
from tests.support.polling import eventually

MODULE = "tests.acceptance.two_queues"
AT_ONCE = 2


class Depot:
    """A depot whose parcels arrive in two queues of one process."""

    def __init__(self, deployment: Deployment) -> None:
        self.stock, self.broker, self.deployment = Stock(deployment), deployment.broker, deployment
        self.queues = [self.broker.own(f"{self.broker.queue}-{side}") for side in ("left", "right")]
        deployment.environment["DEPOT_QUEUES"] = self.broker.queue
        deployment.environment["OUTBOXKIT_QUEUE"] = ",".join(f"{queue}:{AT_ONCE}" for queue in self.queues)
        self.drain("nothing to do\n")

    def drain(self, expected: str | None = None) -> None:
        drained = self.deployment.outboxkit("consume", MODULE, "--drain", OUTBOXKIT_LOG_LEVEL="error")
        assert drained.returncode == 0, drained.stderr
        assert expected in (None, drained.stdout), drained.stdout

    def start(self, **settings: str) -> WorkerProcess:
        return self.deployment.start("consumer", MODULE, OUTBOXKIT_LOG_LEVEL="info", **settings)

    def depths(self) -> list[int]:
        return [self.broker.depth(queue) for queue in self.queues]

    def assert_each_is_booked_once(self, count: int) -> None:
        found = {key: sorted(numbers) for key, numbers in self.stock.booked_by_key().items()}
        assert found == {"left": list(range(count)), "right": list(range(count))}
        assert self.depths() == [0, 0]
        assert self.stock.given_up() == {}


@pytest.fixture
def depot(deployment: Deployment) -> Depot:
    return Depot(deployment)


def test_a_stop_finishes_what_runs_in_both_queues_and_gives_back_the_rest(depot: Depot):
    depot.stock.arrive([Parcel(number, "waits") for number in range(12)])
    consumer = depot.start()
    with depot.deployment.lock_held(GATE):
        eventually(lambda: depot.deployment.waiting_on("advisory") == 2 * AT_ONCE)
        eventually(depot.depths, lambda depths: depths == [0, 0])  # the rest is prefetched
        consumer.terminate()
        eventually(depot.depths, lambda depths: depths == [12 - AT_ONCE, 12 - AT_ONCE])
        assert consumer.is_running
    assert consumer.wait() == 0
    assert sorted(entry["queue"] for entry in consumer.entries("consumer stopped")) == depot.queues
    assert [entry["processed"] for entry in consumer.entries("consumer stopped")] == [AT_ONCE, AT_ONCE]
    depot.drain(f"processed {24 - 2 * AT_ONCE}\n")
    depot.assert_each_is_booked_once(12)


def test_what_does_not_finish_in_time_is_rolled_back_in_both_queues(depot: Depot):
    depot.stock.arrive([Parcel(number, "waits") for number in range(4)])
    consumer = depot.start(OUTBOXKIT_SHUTDOWN_TIMEOUT="500ms")
    with depot.deployment.lock_held(GATE):
        eventually(lambda: depot.deployment.waiting_on("advisory") == 2 * AT_ONCE)
        assert consumer.stop() == 0
        eventually(depot.depths, lambda depths: depths == [4, 4])
    assert not depot.stock.booked()
    depot.drain()
    depot.assert_each_is_booked_once(4)


def test_kills_under_load_lose_and_double_nothing_in_either_queue(depot: Depot):
    count, parts = by_night((240, 3), else_=(100, 2))
    depot.stock.arrive([Parcel(number) for number in range(count)])
    for part in range(1, parts):
        consumer = depot.start()
        eventually(lambda part=part: depot.stock.booked().total() >= part * 2 * count // parts)
        consumer.kill()
    consumer = depot.start()
    eventually(lambda: depot.stock.booked().total() >= 2 * count)
    assert consumer.stop() == 0
    depot.drain()
    depot.assert_each_is_booked_once(count)


def test_both_queues_outlast_a_lost_connection(depot: Depot):
    with depot.deployment.broker_behind_proxy() as (proxy, through):
        consumer = depot.start(OUTBOXKIT_BROKER_URL=through)
        consumer.wait_for("consumer connected", times=2)
        proxy.cut()
        consumer.wait_for("consumer connected", times=4)
        depot.stock.arrive([Parcel(number) for number in range(20)])
        eventually(lambda: depot.stock.booked().total() == 40)
        assert consumer.stop() == 0
    depot.assert_each_is_booked_once(20)
