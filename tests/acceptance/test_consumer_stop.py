"""SIGTERM at a consumer in the middle of its work: what runs is finished, what waits is given back at once."""

import pytest
from sqlalchemy import text

from tests.acceptance.deployment import Deployment
from tests.acceptance.depot import GATE
from tests.acceptance.stock import EVERY_WAY, WAYS, Parcel, Stock
from tests.acceptance.worker_process import WorkerProcess
from tests.support.polling import eventually

RUNNING = {"singly": 2, "together": 5, "in the loop": 2}
"""How many parcels are inside transactions: two of one each, or one of five."""
LIMITS = {"OUTBOXKIT_CONCURRENCY": "2", "OUTBOXKIT_BATCH_SIZE": "5"}
PARCELS = [Parcel(number, "waits") for number in range(12)]
NOTHING_WAITS = "1h"
END_SESSIONS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'outboxkit consumer%'"
)
"""Those of killed processes: the database would notice only when it writes to them."""


class Stop:
    """A consumer that has taken all parcels, of which some are inside handlers that wait at the gate."""

    def __init__(self, deployment: Deployment, way: str) -> None:
        self.stock = Stock(deployment)
        self.running = RUNNING[way]
        self._settings = LIMITS | WAYS[way]
        self._transactions = 1 if way == "together" else 2
        self.stock.declare(**self._settings)
        self.stock.arrive(PARCELS)

    def start(self, **settings: str) -> WorkerProcess:
        """A consumer."""
        return self.stock.consume(**self._settings, **settings)

    def wait_for_handlers(self, *, more: int = 0) -> None:
        """Return once the consumer's handlers wait at the gate, and so many of another one."""
        eventually(lambda: self.stock.deployment.waiting_on("advisory") == self._transactions + more)

    def ready(self) -> int:
        """How many are ready in the queue."""
        return self.stock.deployment.broker.depth()

    def assert_rest_is_handled_once(self) -> None:
        """A consumer that comes later handles what was given back."""
        self.stock.drain(**self._settings)
        assert self.stock.booked() == self.stock.told() == {parcel.number: 1 for parcel in PARCELS}
        assert self.stock.given_up() == {}
        self.stock.assert_nothing_is_left()


@pytest.fixture(params=EVERY_WAY)
def stop(deployment: Deployment, request: pytest.FixtureRequest) -> Stop:
    return Stop(deployment, request.param)


def test_what_has_not_started_is_with_others_while_the_rest_is_finished(stop: Stop):
    first = stop.start()
    with stop.stock.deployment.lock_held(GATE):
        stop.wait_for_handlers()
        eventually(stop.ready, lambda found: found == 0)  # the rest is prefetched
        first.terminate()
        eventually(stop.ready, lambda found: found == len(PARCELS) - stop.running)
        second = stop.start()
        stop.wait_for_handlers(more=1)  # one that came back to the queue is handled alone
        assert first.is_running
        assert not stop.stock.booked()
    assert first.wait() == 0
    assert first.entries("consumer stopped")[0]["processed"] == stop.running
    eventually(lambda: stop.stock.booked().total() == len(PARCELS))
    assert second.stop() == 0
    assert second.entries("consumer stopped")[0]["processed"] == len(PARCELS) - stop.running
    stop.assert_rest_is_handled_once()


def test_what_does_not_finish_in_time_is_rolled_back_and_comes_again(stop: Stop):
    consumer = stop.start(OUTBOXKIT_SHUTDOWN_TIMEOUT="1s")
    with stop.stock.deployment.lock_held(GATE):
        stop.wait_for_handlers()
        assert consumer.stop() == 0
        eventually(stop.ready, lambda found: found == len(PARCELS))
        assert not stop.stock.booked()
    stop.assert_rest_is_handled_once()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_what_waits_for_its_next_attempt_in_its_key_queue_is_given_back_at_once(
    deployment: Deployment, tmp_path, way: str
):
    """In order a failed parcel waits in the process, for an hour here, and others of its key behind it."""
    stock = Stock(deployment, delays="1h")
    cleared = tmp_path / "cleared"
    settings = WAYS[way] | {"DEPOT_CLEARED": str(cleared), "OUTBOXKIT_SHUTDOWN_TIMEOUT": NOTHING_WAITS}
    stock.declare("--ordered", **settings)
    stock.arrive([Parcel(number, "held" if number == 1 else "", key="k") for number in range(6)])
    consumer = stock.consume("--ordered", **settings)
    consumer.wait_for("handler failed, will be retried")
    assert consumer.stop() == 0
    eventually(stock.deployment.broker.depth, lambda depth: depth == 5)
    cleared.touch()
    assert stock.drain("--ordered", **settings) == "processed 5\n"
    assert stock.booked_by_key() == {"k": list(range(6))}
    stock.assert_nothing_is_left()


def test_one_that_no_stop_gives_its_time_has_killed_nobody(deployment: Deployment):
    """One stop after the other cuts it off, and one consumer is killed beside it: that is the only start that counts.

    What is recorded after each of them says how many messages are suspected; the first arrival is beyond suspicion.
    """
    stop, recorded = Stop(deployment, "singly"), []
    patient = {"OUTBOXKIT_SHUTDOWN_TIMEOUT": "10ms"}
    with deployment.lock_held(GATE):
        for end in (WorkerProcess.stop, WorkerProcess.kill, *[WorkerProcess.stop] * 3):
            consumer = stop.start(**patient)
            eventually(lambda: deployment.waiting_on("advisory"))
            end(consumer)
            eventually(stop.ready, lambda found: found == len(PARCELS))
            with deployment.engine.begin() as connection:
                connection.execute(END_SESSIONS)
            eventually(lambda: not deployment.waiting_on("advisory"))
            recorded.append(stop.stock.suspected())
    assert recorded == [0, 1, 1, 1, 1]
    stop.assert_rest_is_handled_once()
