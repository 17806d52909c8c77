"""Everything at once: 5 000 orders, rollbacks, duplicates, and SIGKILLs of relays and consumers at random moments."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from threading import Event, Thread

from outboxkit import codec
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import OrderConfirmed, take_orders
from tests.acceptance.worker_process import WorkerProcess
from tests.polling import eventually

ORDERS = 5000
FOREIGN = range(10_001, 10_501)
SEED = 20_250
QUIET = {"OUTBOXKIT_LOG_LEVEL": "warning"}


def test_no_order_is_lost_and_none_is_doubled(deployment: Deployment):
    deployment.declare_queue()
    with ExitStack() as storm:
        killed = [
            storm.enter_context(killed_at_random(start, random.Random(SEED + number)))
            for number, start in enumerate(
                (
                    lambda: deployment.start("relay", **QUIET),
                    lambda: deployment.start("relay", OUTBOXKIT_BATCH_SIZE="50", **QUIET),
                    lambda: deployment.start("consumer", HANDLERS, **QUIET),
                    lambda: deployment.start("consumer", HANDLERS, OUTBOXKIT_CONCURRENCY="2", **QUIET),
                )
            )
        ]
        publish_twice(deployment)
        kept = take_orders(deployment.engine, range(1, ORDERS + 1), roll_back_every=7)
        publish_twice(deployment)
        expected = dict.fromkeys(kept | set(FOREIGN), 1)
        eventually(deployment.effects, lambda found: len(found) >= len(expected), seconds=180)
    assert all(len(kills) > 1 for kills in killed)
    assert deployment.outboxkit("relay", "--drain", **QUIET).returncode == 0
    assert deployment.outboxkit("consume", HANDLERS, "--drain", **QUIET).returncode == 0
    assert deployment.effects() == expected
    assert (deployment.pending(), deployment.broker.depth(), deployment.dead_letters()) == (0, 0, [])


def publish_twice(deployment: Deployment) -> None:
    """The same 500 messages, from a client that sends each of them two times."""
    one = [
        (
            codec.encode(OrderConfirmed(number, Decimal(1))),
            {"message_id": f"foreign-{number}", "type": "OrderConfirmed"},
        )
        for number in FOREIGN
    ]
    deployment.broker.publish_all(one + one, topic="OrderConfirmed")


@contextmanager
def killed_at_random(start: Callable[[], WorkerProcess], chance: random.Random) -> Iterator[list[WorkerProcess]]:
    """A process that is killed and started again, over and over; yields those that were killed."""
    end, killed = Event(), []

    def kill_and_start() -> None:
        while not end.is_set():
            process = start()
            end.wait(chance.uniform(0.7, 4))
            process.kill()
            killed.append(process)

    thread = Thread(target=kill_and_start)
    thread.start()
    try:
        yield killed
    finally:
        end.set()
        thread.join()
