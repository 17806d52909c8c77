"""A PostgreSQL that is silent while its network acknowledges: workers notice it, and blame nobody."""

from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import OrderConfirmed, send
from tests.acceptance.witness import states


def test_a_relay_goes_on_over_another_connection(deployment: Deployment):
    deployment.declare_queue()
    with deployment.database_behind_proxy() as (proxy, through):
        relay = deployment.relay(OUTBOXKIT_DATABASE_URL=through)
        send(deployment.engine, OrderConfirmed(1, 1))
        deployment.wait_for_empty_outbox()
        proxy.silence()
        send(deployment.engine, OrderConfirmed(2, 1))
        deployment.wait_for_empty_outbox()
        assert relay.stop() == 0
        assert states(relay, "database") == ["away", "back"]
        assert "the connection was silent for" in relay.entries("database is away, waiting")[0]["error"]


def test_a_stop_ends_in_its_time_although_no_server_answers(deployment: Deployment):
    deployment.declare_queue()
    with deployment.database_behind_proxy() as (database, url), deployment.broker_behind_proxy() as (broker, through):
        settings = {"OUTBOXKIT_DATABASE_URL": url, "OUTBOXKIT_BROKER_URL": through, "OUTBOXKIT_SHUTDOWN_TIMEOUT": "1s"}
        relay = deployment.relay(**settings)
        send(deployment.engine, OrderConfirmed(1, 1))
        deployment.wait_for_empty_outbox()
        database.swallow()
        broker.swallow()
        send(deployment.engine, OrderConfirmed(2, 1))
        assert relay.stop() == 0
        database.release()
        broker.release()
