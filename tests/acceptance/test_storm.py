"""Everything at once: orders, rollbacks, duplicates, and SIGKILLs of relays and consumers at random moments."""

import signal
from contextlib import ExitStack
from decimal import Decimal

from outboxkit.codec import payloads
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.killing import killed_at_random
from tests.acceptance.shop import OrderConfirmed, take_orders
from tests.support.night import by_night, chance
from tests.support.polling import eventually

ORDERS = by_night(5000, else_=300)
FOREIGN = range(10_001, 10_001 + ORDERS // 10)
KILLS = by_night(40, else_=2)
INFO = {"OUTBOXKIT_LOG_LEVEL": "info"}
QUIET = {"OUTBOXKIT_LOG_LEVEL": "warning"}


def test_no_order_is_lost_and_none_is_doubled(deployment: Deployment):
    deployment.declare_queue()
    workers = (
        ("relay started", lambda: deployment.start("relay", **INFO)),
        ("relay started", lambda: deployment.start("relay", OUTBOXKIT_BATCH_SIZE="50", **INFO)),
        ("consumer connected", lambda: deployment.start("consumer", HANDLERS, **INFO)),
        ("consumer connected", lambda: deployment.start("consumer", HANDLERS, OUTBOXKIT_CONCURRENCY="2", **INFO)),
    )
    with ExitStack() as storm:
        for number, (started, start) in enumerate(workers):
            storm.enter_context(killed_at_random(start, started, chance("storm", number), kills=KILLS))
        publish_twice(deployment)
        kept = take_orders(deployment.engine, range(1, ORDERS + 1), roll_back_every=7)
        publish_twice(deployment)
        expected = dict.fromkeys(kept | set(FOREIGN), 1)
        eventually(deployment.effects, lambda found: len(found) >= len(expected), seconds=by_night(1800, else_=180))
    assert [process.wait() for process in deployment.processes].count(-signal.SIGKILL) == KILLS * len(workers)
    assert deployment.outboxkit("relay", "--drain", **QUIET).returncode == 0
    assert deployment.outboxkit("consume", HANDLERS, "--drain", **QUIET).returncode == 0
    assert deployment.effects() == expected
    assert (deployment.pending(), deployment.broker.depth(), deployment.dead_letters()) == (0, 0, [])


def publish_twice(deployment: Deployment) -> None:
    """The same messages, from a client that sends each of them two times."""
    one = [
        (
            payloads.encode(OrderConfirmed(number, Decimal(1))),
            {"message_id": f"foreign-{number}", "type": "OrderConfirmed"},
        )
        for number in FOREIGN
    ]
    deployment.broker.publish_all(one + one, topic="OrderConfirmed")
