"""SIGTERM: what is in flight is finished or given back, and the exit code is 0."""

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.settling import settling_waits
from tests.acceptance.shop import OrderConfirmed, OrderGated, send
from tests.servers.ports import free_ports
from tests.support.polling import eventually


def test_a_relay_settles_the_batch_in_flight(deployment: Deployment):
    """The first batch waits to be settled, the second is published meanwhile, the third is left alone."""
    deployment.declare_queue()
    send(deployment.engine, *(OrderGated(number) for number in range(15)))
    with settling_waits(deployment):
        relay = deployment.relay(OUTBOXKIT_BATCH_SIZE="5")
        eventually(lambda: deployment.waiting_on("advisory") == 1)
        eventually(deployment.broker.depth, lambda found: found == 10)
        relay.terminate()
        assert deployment.pending() == 15
    assert relay.wait() == 0
    assert (deployment.pending(), deployment.broker.depth()) == (5, 10)


def test_a_relay_that_cannot_settle_in_time_gives_the_rows_back(deployment: Deployment):
    deployment.declare_queue()
    send(deployment.engine, OrderGated(1))
    with settling_waits(deployment):
        relay = deployment.relay(OUTBOXKIT_SHUTDOWN_TIMEOUT="500ms")
        eventually(lambda: deployment.waiting_on("advisory") == 1)
        assert relay.stop() == 0
        assert deployment.pending() == 1
    assert deployment.outboxkit("relay", "--drain").stdout == "published 1\n"


@pytest.mark.parametrize(("name", "away"), [("relay", "BROKER"), ("consumer", "DATABASE")])
def test_a_stop_during_an_outage(deployment: Deployment, name: str, away: str):
    (port,) = free_ports(1)
    scheme = "amqp" if away == "BROKER" else "postgresql+psycopg"
    nowhere = {f"OUTBOXKIT_{away}_URL": f"{scheme}://someone:hunter2@127.0.0.1:{port}/nowhere"}
    send(deployment.engine, OrderConfirmed(1, 1))
    process = deployment.start(name, *(["tests.acceptance.shop"] if name == "consumer" else []), **nowhere)
    process.wait_for(f"{away.lower()} is away, waiting")
    assert process.stop() == 0
    assert "hunter2" not in process.log.read_text()
