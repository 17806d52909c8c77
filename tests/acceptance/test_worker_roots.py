"""The programs in `workers/`, as compose.yaml puts them together: one database, one queue, the example's handlers."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from outboxkit import tables
from tests.acceptance.deployment import Deployment
from tests.acceptance.worker_process import WorkerProcess
from tests.polling import eventually
from tests.processes import ROOT, run_to_end

HANDLERS = ("orders.handlers", "billing.handlers")
ROOTS = ("relay", "consumer", "retention")


@pytest.fixture
def shop(deployment: Deployment) -> Deployment:
    """A deployment with the tables of examples/2_two_services in its database."""
    deployment.environment["PYTHONPATH"] = str(ROOT / "examples" / "2_two_services")
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


def test_retention_forgets_what_is_old_again_and_again(shop: Deployment):
    retention = shop.start("retention", OUTBOXKIT_INBOX_RETENTION="1d", OUTBOXKIT_PRUNE_INTERVAL="100ms")
    retention.wait_for("inbox pruned")
    now = datetime.now(UTC)
    with shop.engine.begin() as connection:
        for id_, age in (("old", timedelta(days=2)), ("new", timedelta(hours=2))):
            row = {"handler": "IssueInvoice", "message_id": id_, "type": "OrderPlaced", "processed_at": now - age}
            connection.execute(tables.inbox.insert().values(row))

    def remembered() -> list[str]:
        with shop.engine.connect() as connection:
            return list(connection.scalars(select(tables.inbox.c.message_id)))

    eventually(remembered, lambda ids: ids == ["new"])
    assert retention.stop() == 0


@pytest.mark.parametrize("name", ROOTS)
def test_missing_tables_are_one_line_that_says_what_to_run(name: str, empty_postgresql_url: str, shop: Deployment):
    process = started_with(shop, name, OUTBOXKIT_DATABASE_URL=empty_postgresql_url)
    assert process.wait() == 1
    assert last_line(process).startswith(f"{name}: the outboxkit tables are missing: run `outboxkit migrate`")
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("name", ROOTS)
def test_a_bad_setting_is_one_line_that_names_it(name: str, shop: Deployment):
    process = started_with(shop, name, OUTBOXKIT_SHUTDOWN_TIMEOUT="soon")
    assert process.wait() == 1
    assert process.log.read_text().startswith(f"{name}: OUTBOXKIT_SHUTDOWN_TIMEOUT is 'soon'")
    assert process.log.read_text().count("\n") == 1


def test_a_consumer_without_modules_says_how_it_is_called(shop: Deployment):
    process = shop.start("consumer")
    assert process.wait() == 1
    assert process.log.read_text() == "usage: OUTBOXKIT_QUEUE=name python workers/consumer.py MODULE...\n"


@pytest.mark.parametrize("name", ROOTS)
def test_a_root_is_short_enough_to_copy(name: str):
    assert len(Path(ROOT, "workers", f"{name}.py").read_text().splitlines()) <= 40


def started_with(shop: Deployment, name: str, **settings: str) -> WorkerProcess:
    return shop.start(name, *(HANDLERS if name == "consumer" else ()), **settings)


def last_line(process: WorkerProcess) -> str:
    return process.log.read_text().splitlines()[-1]
