"""`outboxkit dead` as an operator runs it: a message dies at a real broker, is found, replayed and handled."""

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import func, select, text

from outboxkit import ids, tables
from outboxkit.codec import headers as own
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import OrderConfirmed, OrderRefused, send
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.operators.dead_rows import buried, dead, fill, still_parked, waiting
from tests.processes import COMMAND
from tests.support.polling import eventually

LETTERS = 3000

NO_RELAY = "outboxkit: no relay is connected to this database: `outboxkit relay` sends them\n"


def test_a_message_that_nobody_wanted_is_replayed_to_who_wants_it_now(deployment: Deployment):
    send(deployment.engine, OrderConfirmed(1, Decimal(1)))
    deployment.outboxkit("relay", "--drain", OUTBOXKIT_MAX_ATTEMPTS="1")
    (letter,) = json.loads(deployment.outboxkit("dead", "list", "--json").stdout)["dead_letters"]
    assert letter["reason"] == "unroutable"
    assert deployment.pending() == 0
    deployment.declare_queue()
    replayed = deployment.outboxkit("dead", "replay", "--yes", str(letter["id"]))
    assert (replayed.returncode, replayed.stderr) == (0, NO_RELAY)
    assert re.search(r"replayed 1 of 1 by \S+ \(database role \w+\)\n", replayed.stdout)
    assert deployment.outboxkit("relay", "--drain").stdout.startswith("published 1")
    assert deployment.outboxkit("consume", HANDLERS, "--drain").returncode == 0
    assert deployment.message_ids() == [letter["message_id"]]
    assert deployment.outboxkit("dead", "list").stdout == "no open dead letter\n"
    assert "replayed by " in deployment.outboxkit("dead", "show", letter["message_id"]).stdout


def test_one_of_the_inbox_goes_to_its_queue_alone(deployment: Deployment):
    """Two queues are bound to its type; it was given up by the consumer of one, by one of its handlers."""
    broker = deployment.broker
    broker.bind("OrderConfirmed")
    other = broker.bind("OrderConfirmed", queue=f"{broker.queue}.other")
    headers = {"tenant": "a", "CC": [other], "nested": {"third": 1 / 3, "big": 2**70, "x" * 200: 1}, "l": [1, None]}
    letter = buried(ids.new(), queue=broker.queue, key="order-7", topic="OrderConfirmed", created_at=datetime.now(UTC))
    fill(deployment.engine, [letter | {"headers": json.dumps(headers).encode()}])
    assert deployment.outboxkit("dead", "replay", "--yes", "--all").returncode == 0
    drained = deployment.outboxkit("relay", "--drain")
    assert drained.stdout.startswith("published 1"), drained.stderr
    assert broker.take(other) is None
    found = broker.take()
    assert found is not None
    properties = found.properties
    assert (found.body, properties.message_id, properties.type) == (
        letter["payload"],
        letter["message_id"],
        letter["type"],
    )
    assert properties.headers[own.HANDLERS] == ["SendReceipt"]
    assert properties.headers["outboxkit-key"] == "order-7"
    assert properties.headers["nested"] == {"third": repr(1 / 3), "big": str(2**70)}
    assert (properties.headers["tenant"], properties.headers["l"]) == ("a", [1, None])
    assert "CC" not in properties.headers
    assert broker.take() is None


def test_a_queue_that_is_gone_loses_nothing(deployment: Deployment):
    fill(deployment.engine, [buried("x", queue=f"{deployment.broker.queue}.gone")])
    deployment.broker.declare_exchange()
    assert deployment.outboxkit("dead", "replay", "--yes", "--all").returncode == 0
    assert deployment.outboxkit("relay", "--drain", OUTBOXKIT_MAX_ATTEMPTS="1").returncode == 3
    _, again = deployment.dead_letters()
    assert (again.side, again.reason, again.message_id) == ("outbox", "unroutable", "x")
    deployment.broker.bind(queue=f"{deployment.broker.queue}.gone")
    assert deployment.outboxkit("dead", "replay", "--yes", "--all").returncode == 0
    assert deployment.outboxkit("relay", "--drain").returncode == 0
    assert deployment.broker.take(f"{deployment.broker.queue}.gone") is not None


def test_behind_parked_ones_of_its_key_it_waits_its_turn(deployment: Deployment):
    broker = deployment.broker
    broker.bind("OrderConfirmed")
    fill(deployment.engine, [dead(1, key="a")], [waiting(2, "a")])
    fill(deployment.engine, [buried("x", key="a", queue=broker.queue)])
    with deployment.engine.begin() as connection:
        connection.execute(text("SELECT setval(pg_get_serial_sequence('outboxkit_outbox', 'position'), 10)"))
    assert deployment.outboxkit("dead", "replay", "--yes", "--side", "inbox").returncode == 0
    deployment.outboxkit("relay", "--drain")
    assert broker.take() is None
    assert len(still_parked(deployment.engine)) == 2
    assert deployment.outboxkit("dead", "replay", "--yes", "--side", "outbox").returncode == 0
    assert deployment.outboxkit("relay", "--drain").returncode == 0
    assert [found.properties.message_id for found in broker.take_all()] == ["m-1", "m-2", "x"]


def test_what_a_consumer_gave_up_is_handled_once_after_a_replay(deployment: Deployment):
    """A stale message is refused, then accepted, and handled; what its handler refuses again is a new dead letter."""
    deployment.declare_queue()
    old = ids.new(at=datetime.now(UTC) - timedelta(days=20))
    send(deployment.engine, OrderConfirmed(1, Decimal(1)), message_id=old)
    send(deployment.engine, OrderRefused(2))
    assert deployment.outboxkit("relay", "--drain").returncode == 0
    deployment.outboxkit("consume", HANDLERS, "--drain")
    assert sorted(row.reason for row in deployment.dead_letters()) == ["rejected", "stale"]
    assert deployment.effects().total() == 0
    refused = deployment.outboxkit("dead", "replay", "--yes", old)
    assert refused.returncode == 3
    assert "add --accept-stale" in refused.stdout
    assert deployment.outboxkit("dead", "replay", "--yes", "--all", "--accept-stale").returncode == 0
    assert deployment.outboxkit("relay", "--drain").stdout.startswith("published 2")
    deployment.outboxkit("consume", HANDLERS, "--drain")
    assert deployment.effects() == {1: 1}
    letters = {(row.reason, row.resolution) for row in deployment.dead_letters()}
    assert letters == {("stale", "replayed"), ("rejected", "replayed"), ("rejected", None)}


def test_a_replay_that_is_killed_goes_on_and_puts_each_back_once(deployment: Deployment, tmp_path):
    fill(
        deployment.engine,
        [dead(place, key=f"k{place % 50}") for place in range(1, LETTERS + 1)],
        [waiting(LETTERS + 1 + number, f"k{number}") for number in range(50)],
    )
    command = [COMMAND, "dead", "replay", "--yes", "--all", "--rate"]
    replay = WorkerProcess([*command, "200"], deployment.environment, tmp_path / "replay.log")
    eventually(deployment.pending, lambda count: count > 50 + 400)
    replay.kill()
    back = deployment.pending() - 50
    assert 400 < back < LETTERS
    letters = deployment.dead_letters()
    assert sum(row.resolution == "replayed" for row in letters) == back
    assert sorted(row.position for row in letters if row.resolution == "replayed") == list(range(1, back + 1))
    assert len(still_parked(deployment.engine)) == 50
    again = deployment.outboxkit("dead", "replay", "--yes", "--all")
    assert (again.returncode, again.stderr) == (0, NO_RELAY)
    assert "released 50 waiting messages" in again.stdout
    assert still_parked(deployment.engine) == set()
    counted = select(func.count(), func.count(tables.outbox.c.message_id.distinct()))
    with deployment.engine.connect() as connection:
        assert connection.execute(counted).one() == (LETTERS + 50, LETTERS + 50)


def test_a_stop_ends_a_replay_cleanly(deployment: Deployment, tmp_path):
    fill(deployment.engine, [dead(place) for place in range(1, LETTERS + 1)])
    command = [COMMAND, "dead", "replay", "--yes", "--all", "--rate", "100"]
    replay = WorkerProcess(command, deployment.environment, tmp_path / "replay.log")
    eventually(deployment.pending)
    try:
        assert replay.stop() == 3
    finally:
        replay.kill()
    said = (tmp_path / "replay.log").read_text()
    assert f"replayed {deployment.pending()} of 3 000 by " in said
    assert "stopped before the end: the same command goes on" in said
