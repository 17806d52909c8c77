"""The programs in `workers/`, as compose.yaml puts them together: one database, one queue, the example's handlers."""

import asyncio
import os
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from tests.acceptance.deployment import Deployment
from tests.acceptance.worker_process import WorkerProcess
from tests.processes import ROOT, run_to_end
from tests.support.http_destination import Destination
from tests.support.polling import eventually

HANDLERS = ("orders.handlers", "billing.handlers")
ROOTS = ("relay", "consumer", "retention")


@pytest.fixture
def shop(deployment: Deployment) -> Deployment:
    """A deployment with the tables of examples/2_two_services in its database."""
    deployment.environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'examples' / '2_two_services'}"
    for name in ("orders.models", "billing.models"):
        assert python(deployment, "-m", name).startswith(name.partition(".")[0])
    return deployment


def python(deployment: Deployment, *arguments: str) -> str:
    """The output of a Python program that ends well."""
    done = run_to_end([sys.executable, *arguments], deployment.environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_order_goes_through_all_three_roots(shop: Deployment):
    consumer = shop.start("consumer", *HANDLERS)
    consumer.wait_for("consumer connected")
    relay, retention = shop.start("relay"), shop.start("retention")
    retention.wait_for("inbox pruned")

    python(shop, "-m", "orders.place", "25")
    assert "orders: 25, each with its invoice" in python(shop, "-m", "orders.show", "--wait")
    assert "billing: 25 invoices for 25 orders" in python(shop, "-m", "billing.show")
    shop.wait_for_empty_outbox()

    assert [worker.stop() for worker in (relay, consumer, retention)] == [0, 0, 0]
    assert consumer.entries("consumer stopped")[0]["processed"] == 50
    assert shop.dead_letters() == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("relay", "relay: '--drain' is not accepted: settings come from OUTBOXKIT_… variables here"),
        ("retention", "retention: '--drain' is not accepted: settings come from OUTBOXKIT_… variables here"),
        ("consumer", "consumer: '--drain' is not a module: settings come from OUTBOXKIT_… variables here"),
    ],
)
def test_an_option_of_the_command_is_refused(shop: Deployment, name: str, told: str):
    process = shop.start(name, "--drain")
    assert process.wait() == 2
    assert process.log.read_text() == f"{told}\n"


async def test_the_relay_of_an_http_destination_sends_its_own_messages_with_what_proves_who_sends(shop: Deployment):
    secret = f"whsec_{b64encode(b'0123456789' * 3).decode()}"
    with Session(shop.engine) as session, session.begin():
        outbox.add(session, Message(id="for-the-broker", type="InternalSecret", payload=b"{}"))
        outbox.add(session, Message(id="charge-1", type="ChargeCard", payload=b"{}"), destination="payments")
    async with Destination() as payments:
        relay = await asyncio.to_thread(
            shop.start,
            "relay",
            OUTBOXKIT_DESTINATION="payments",
            OUTBOXKIT_BROKER_URL=payments.url,
            OUTBOXKIT_HTTP_AUTHORIZATION="Bearer token",
            OUTBOXKIT_HTTP_SECRET=secret,
        )
        left = await asyncio.to_thread(eventually, shop.outbox_rows, lambda rows: len(rows) == 1)
        started = relay.entries("relay started")[0]
        assert await asyncio.to_thread(relay.stop) == 0
    assert [row.message_id for row in left] == ["for-the-broker"]
    (call,) = payments.calls
    assert (call.key, call.header("authorization"), call.header("webhook-id")) == (
        "charge-1",
        "Bearer token",
        "charge-1",
    )
    assert str(call.header("webhook-signature")).startswith("v1,")
    assert (started["destination"], started["broker"]) == ("payments", f"http://localhost:{payments.port}")
    assert started["database"].startswith("postgresql://")


def test_what_a_database_refuses_is_told_without_what_was_written(shop: Deployment):
    with Session(shop.engine) as session, session.begin():
        session.execute(text("ALTER TABLE outboxkit_dead_letter ADD CONSTRAINT nothing_dies CHECK (id IS NULL)"))
        headers = {"authorization": "Bearer HEADER-SECRET"}
        outbox.add(session, Message(id="dead", type="Nobody", payload=b"4111-SECRET", headers=headers))
    shop.survived = frozenset({"unexpected error, the relay goes on"})
    relay = shop.start("relay", OUTBOXKIT_MAX_ATTEMPTS="1")
    eventually(lambda: "nothing_dies" in relay.log.read_text() or not relay.is_running)
    relay.kill()
    assert "nothing_dies" in relay.log.read_text()
    assert "SECRET" not in relay.log.read_text()


@pytest.mark.parametrize("name", ROOTS)
def test_secrets_may_come_from_files(name: str, shop: Deployment, tmp_path: Path):
    for each in ("DATABASE_URL", "BROKER_URL"):
        (tmp_path / each).write_text(shop.environment.pop(f"OUTBOXKIT_{each}") + "\n")
        shop.environment[f"OUTBOXKIT_{each}_FILE"] = str(tmp_path / each)
    process = started_with(shop, name, OUTBOXKIT_CONCURENCY="3")
    started = process.wait_for({"consumer": "consumer starting"}.get(name, f"{name} started"))
    assert started["database"].startswith("postgresql://")
    assert process.entries()[0]["event"].endswith("did you mean OUTBOXKIT_CONCURRENCY?")
    assert process.stop() == 0


def started_with(shop: Deployment, name: str, **settings: str) -> WorkerProcess:
    return shop.start(name, *(HANDLERS if name == "consumer" else ()), **settings)
