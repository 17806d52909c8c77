"""A real cluster of three nodes, as `outboxkit doctor` judges it when one is lost."""

from collections.abc import Iterator

import pytest

from outboxkit.operators.findings import Severity
from tests.integration.doctor_broker.examining import TYPE, Admin, can_be_asked, consuming, found, settings_of
from tests.plain_client import PlainClient
from tests.polling import eventually
from tests.servers.cluster import Cluster, provide_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = provide_cluster(managed=True)
    cluster.start()
    eventually(lambda: can_be_asked(Admin(cluster.nodes[0].management_url)))
    yield cluster
    cluster.close()


@pytest.mark.night
async def test_a_cluster_and_the_loss_of_a_node(cluster: Cluster):
    client = PlainClient(cluster.urls[0])
    settings = settings_of(cluster.nodes[0], client, broker_url=cluster.url)
    async with consuming(client):
        client.bind(TYPE, queue=client.own(f"{client.queue}-classic"), arguments={})
        one = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
        client.bind(TYPE, queue=client.own(f"{client.queue}-one"), arguments=one)
        findings = await found("queue-one-member", settings)
        assert "rabbitmq-queues add_member" in findings["queue-one-member"].commands[0]
        assert findings["queue-classic"].severity is Severity.PROBLEM
        assert "in a cluster of 3 nodes" in findings["queue-classic"].what
        assert not {"node-down", "queue-members-away", "broker-node-away"} & set(findings)
        cluster.kill(2)
        findings = await found("queue-members-away", settings)
        findings |= await found("node-down", settings)
        assert findings["queue-members-away"].severity is Severity.WARNING
        assert findings["node-down"].severity is Severity.WARNING
        assert findings["broker-node-away"].severity is Severity.WARNING
        client.disconnect()
