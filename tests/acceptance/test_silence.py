"""A PostgreSQL that is silent while its network acknowledges: workers notice it, and blame nobody."""

from collections import Counter

import pytest
from sqlalchemy import select

from outboxkit import tables
from tests.acceptance.customers import Customers, gate_shut
from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import OrderConfirmed, send
from tests.acceptance.test_consumer_outages_database import database_behind_proxy, noticed
from tests.acceptance.witness import states
from tests.support.night import chance


def test_a_relay_goes_on_over_another_connection(deployment: Deployment):
    deployment.declare_queue()
    with database_behind_proxy(deployment) as (proxy, through):
        relay = deployment.relay(**through)
        send(deployment.engine, OrderConfirmed(1, 1))
        deployment.wait_for_empty_outbox()
        proxy.silence()
        send(deployment.engine, OrderConfirmed(2, 1))
        deployment.wait_for_empty_outbox()
        assert relay.stop() == 0
        assert states(relay, "database") == ["away", "back"]
        assert "the connection was silent for" in relay.entries("database is away, waiting")[0]["error"]


@pytest.mark.night
def test_a_consumer_in_the_middle_of_handlers_goes_on_over_other_connections(deployment: Deployment):
    with database_behind_proxy(deployment) as (proxy, through):
        customers = Customers(deployment, **through)
        with gate_shut(deployment):
            customers.send()
            customers.wait_in_the_middle()
            proxy.silence()
        customers.send()
        customers.assert_away("database", "the connection was silent for")
        customers.wait_for_effects()
        customers.assert_all_handled("database", times=noticed(customers, at_most=4))


@pytest.mark.parametrize("worker", ["relay", pytest.param("consumer", marks=pytest.mark.night)])
def test_a_stop_ends_in_its_time_although_no_server_answers(deployment: Deployment, worker: str):
    with database_behind_proxy(deployment) as (database, through), deployment.broker_behind_proxy() as (broker, url):
        settings = {**through, "OUTBOXKIT_BROKER_URL": url, "OUTBOXKIT_SHUTDOWN_TIMEOUT": "1s"}
        if worker == "relay":
            deployment.declare_queue()
            process = deployment.relay(**settings)
            send(deployment.engine, OrderConfirmed(1, 1))
            deployment.wait_for_empty_outbox()
        else:
            customers = Customers(deployment, **settings)
            process = customers.consumer
            with gate_shut(deployment):
                customers.send()
                customers.wait_in_the_middle()
                database.swallow()
        database.swallow()
        broker.swallow()
        send(deployment.engine, OrderConfirmed(2, 1))
        assert process.stop() == 0
        database.release()
        broker.release()


@pytest.mark.night
def test_silence_again_and_again_loses_doubles_and_blames_nothing(deployment: Deployment):
    moments, numbers = chance("silence"), range(0)
    with database_behind_proxy(deployment) as (proxy, through):
        relay, consumer = deployment.relay(**through), deployment.consumer(**through)
        for _ in range(4):
            numbers = range(len(numbers) + 200)
            silent_from, heals = moments.randrange(40), moments.random() < 0.5
            for batch in range(40):
                send(deployment.engine, *(OrderConfirmed(number, 1) for number in numbers[-200 + 5 * batch :][:5]))
                if batch == silent_from:
                    proxy.silence()
            if heals:  # what was sent meanwhile is lost for good
                proxy.unsilence()
            deployment.wait_for_effects(len(numbers))
        assert [relay.stop(), consumer.stop()] == [0, 0]
    assert deployment.effects() == Counter(numbers)
    assert deployment.dead_letters() == []
    with deployment.engine.connect() as connection:
        assert set(connection.execute(select(tables.inbox.c.attempts)).scalars()) == {1}
