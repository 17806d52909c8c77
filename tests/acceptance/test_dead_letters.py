"""`outboxkit dead` as an operator runs it: a message dies at a real broker, is found, replayed and handled."""

import json
import re
from decimal import Decimal

from sqlalchemy import func, select, text

from outboxkit import tables
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import OrderConfirmed, send
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
