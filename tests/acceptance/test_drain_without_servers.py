"""`--drain` where a server is away: one line, exit code 1, nothing lost and no attempt counted."""

from decimal import Decimal

import pytest

from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import OrderConfirmed, send
from tests.servers.ports import free_ports

SHORT = {"OUTBOXKIT_PUBLISH_TIMEOUT": "1s", "OUTBOXKIT_LOG_LEVEL": "error"}


@pytest.mark.parametrize(
    ("away", "command"), [("broker", ("relay", "--drain")), ("database", ("consume", HANDLERS, "--drain"))]
)
def test_a_drain_gives_up(deployment: Deployment, away: str, command: tuple[str, ...]):
    (port,) = free_ports(1)
    scheme = "amqp" if away == "broker" else "postgresql+psycopg"
    url = f"{scheme}://someone:hunter2@127.0.0.1:{port}/nowhere"
    send(deployment.engine, OrderConfirmed(1, Decimal(1)))
    drained = deployment.outboxkit(*command, **SHORT, **{f"OUTBOXKIT_{away.upper()}_URL": url})
    assert (drained.returncode, drained.stdout) == (1, "")
    (line,) = drained.stderr.splitlines()
    assert line.startswith(f"outboxkit: the {away} ")
    assert "hunter2" not in line
    (row,) = deployment.outbox_rows()
    assert (row.attempts, row.last_error, row.due_at) == (0, None, None)


def test_a_drain_does_not_wait_for_ever_for_a_broker_that_never_answers(deployment: Deployment):
    send(deployment.engine, OrderConfirmed(1, Decimal(1)))
    deployment.broker.bind("OrderConfirmed")
    with deployment.broker_behind_proxy() as (proxy, through):
        proxy.hold_server()
        drained = deployment.outboxkit("relay", "--drain", **SHORT, OUTBOXKIT_BROKER_URL=through)
    assert drained.returncode == 1
    assert drained.stderr.startswith("outboxkit: the broker is away: ")
    (row,) = deployment.outbox_rows()
    assert (row.attempts, row.last_error, row.due_at) == (0, None, None)
