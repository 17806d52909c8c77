"""The programs in `workers/`, as compose.yaml puts them together: one database, one queue, the example's handlers."""

import os
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.processes import ROOT, run_to_end
from tests.support.polling import eventually


def python(deployment: Deployment, *arguments: str) -> str:
    """The output of a Python program that ends well."""
    done = run_to_end([sys.executable, *arguments], deployment.environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_order_goes_through_all_three_roots(deployment: Deployment):
    deployment.environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'examples' / '2_two_services'}"
    for name in ("orders.models", "billing.models"):
        assert python(deployment, "-m", name).startswith(name.partition(".")[0])
    consumer = deployment.start("consumer", "orders.handlers", "billing.handlers")
    consumer.wait_for("consumer connected")
    relay, retention = deployment.start("relay"), deployment.start("retention")
    retention.wait_for("inbox pruned")

    python(deployment, "-m", "orders.place", "25")
    assert "orders: 25, each with its invoice" in python(deployment, "-m", "orders.show", "--wait")
    assert "billing: 25 invoices for 25 orders" in python(deployment, "-m", "billing.show")
    deployment.wait_for_empty_outbox()

    assert [worker.stop() for worker in (relay, consumer, retention)] == [0, 0, 0]
    assert consumer.entries("consumer stopped")[0]["processed"] == 50
    assert deployment.dead_letters() == []


def test_what_a_database_refuses_is_told_without_what_was_written(deployment: Deployment):
    with Session(deployment.engine) as session, session.begin():
        session.execute(text("ALTER TABLE outboxkit_dead_letter ADD CONSTRAINT nothing_dies CHECK (id IS NULL)"))
        headers = {"authorization": "Bearer HEADER-SECRET"}
        outbox.add(session, Message(id="dead", type="Nobody", payload=b"4111-SECRET", headers=headers))
    deployment.survived = frozenset({"unexpected error, the relay goes on"})
    relay = deployment.start("relay", OUTBOXKIT_MAX_ATTEMPTS="1")
    eventually(lambda: "nothing_dies" in relay.log.read_text() or not relay.is_running)
    relay.kill()
    assert "nothing_dies" in relay.log.read_text()
    assert "SECRET" not in relay.log.read_text()


@pytest.mark.parametrize(("name", "event"), [("relay", "relay started"), ("consumer", "consumer starting")])
def test_secrets_may_come_from_files(name: str, event: str, deployment: Deployment, tmp_path: Path):
    for each in ("DATABASE_URL", "BROKER_URL"):
        (tmp_path / each).write_text(deployment.environment.pop(f"OUTBOXKIT_{each}") + "\n")
        deployment.environment[f"OUTBOXKIT_{each}_FILE"] = str(tmp_path / each)
    process = deployment.start(name, *([HANDLERS] if name == "consumer" else []), OUTBOXKIT_CONCURENCY="3")
    assert process.wait_for(event)["database"].startswith("postgresql://")
    assert process.entries()[0]["event"].endswith("did you mean OUTBOXKIT_CONCURRENCY?")
    assert process.stop() == 0
