"""Workers on a machine whose clock is wrong: they go by the database's, and say so."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from outboxkit import outbox
from outboxkit.codec import payloads
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import OrderConfirmed
from tests.processes.client import COMMAND, ROOT
from tests.servers import provide_faketime


def twenty_minutes_ahead(deployment: Deployment, *arguments: str) -> list[dict[str, Any]]:
    """The log of a command on a machine whose clock is ahead. It is not forked, so that it gets the other clock."""
    command = [provide_faketime(), "-f", "+20m", COMMAND, *arguments]
    environment = {**os.environ, **deployment.environment}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def warned(log: list[dict[str, Any]]) -> list[int]:
    return [entry["seconds"] for entry in log if entry["event"] == "this machine's clock is ahead of the database's"]


def test_workers_whose_clock_is_ahead_go_by_the_databases(deployment: Deployment):
    deployment.declare_queue()
    young = datetime.now(UTC) - timedelta(minutes=13)
    body, retention = payloads.encode(OrderConfirmed(3, Decimal(1))), {"OUTBOXKIT_INBOX_RETENTION": "20m"}
    deployment.broker.publish(
        body, topic="OrderConfirmed", type="OrderConfirmed", message_id="foreign", timestamp=int(young.timestamp())
    )
    in_ten_minutes = datetime.now(UTC) + timedelta(minutes=10)
    with Session(deployment.engine) as session, session.begin():
        outbox.add(session, OrderConfirmed(1, Decimal(1)), expires_at=in_ten_minutes)
        outbox.add(session, OrderConfirmed(2, Decimal(1)), deliver_at=in_ten_minutes)
    (seconds,) = warned(twenty_minutes_ahead(deployment, "relay", "--drain"))
    assert abs(seconds - 1200) < 60
    (waiting,) = deployment.outbox_rows()
    assert waiting.due_at == in_ten_minutes, "a delayed message left early"
    assert deployment.dead_letters() == [], "an offer expired early"
    deployment.environment |= retention | {"OUTBOXKIT_MAX_ATTEMPTS": "2"}
    assert len(warned(twenty_minutes_ahead(deployment, "consume", HANDLERS, "--drain"))) == 1
    assert deployment.effects() == {1: 1, 3: 1}, "a young message was taken for stale"
