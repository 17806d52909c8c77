"""A broker that cannot be published to: the relay says so once, waits, and goes on by itself.

A broker that is down is in `test_order.py`.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.acceptance.deployment import Deployment
from tests.acceptance.witness import begin, declare
from tests.servers import OwnServer
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

SHORT = {"OUTBOXKIT_PUBLISH_TIMEOUT": "1s"}


def test_it_refuses_connections(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through)
        proxy.refuse()
        witness.send()
        witness.assert_away("broker", f"cannot connect to amqp://127.0.0.1:{proxy.port}", "lost", "closed")
        witness.assert_status(waiting=4)
        proxy.accept()
        witness.assert_all_arrived("broker")


def test_it_never_confirms(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through, **SHORT)
        proxy.swallow()
        witness.send()
        witness.assert_away("broker", "the broker did not answer in time")
        witness.assert_status(waiting=4)
        proxy.release()
        witness.assert_all_arrived("broker")


def test_it_falls_silent_and_heartbeats_tell(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=f"{through}?heartbeat=1", OUTBOXKIT_PUBLISH_TIMEOUT="20s")
        proxy.swallow()
        witness.send()
        witness.assert_away("broker", "heartbeat")
        witness.assert_status(waiting=4)
        proxy.release()
        witness.assert_all_arrived("broker")


def in_vain(deployment: Deployment) -> int:
    """How many messages wait; some may have left before the broker's alarm."""
    waiting = deployment.pending()
    assert waiting > 0
    return waiting


def test_it_blocks_publishers(on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer):
    witness = begin(on_own_rabbitmq, **SHORT)
    own_rabbitmq.execute("rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
    try:
        eventually(lambda: witness.send(1) or witness.relay.entries("broker is away, waiting"))
        witness.assert_away("broker", "the broker has blocked publishers: low on memory")
        witness.assert_status(waiting=in_vain(on_own_rabbitmq))
    finally:
        own_rabbitmq.execute("rabbitmqctl", "set_vm_memory_high_watermark", "0.6")
    witness.assert_all_arrived("broker")


class OwnVhost:
    """A vhost of a test's own, and a user for the relay in it."""

    def __init__(self, server: OwnServer) -> None:
        self.name = f"vhost-{secrets.token_hex(4)}"
        self.user = f"relay-{secrets.token_hex(4)}"
        self.password = secrets.token_hex(8)
        self._server = server
        self.control("add_user", self.user, self.password)
        self.create()

    def control(self, *arguments: str) -> None:
        self._server.execute("rabbitmqctl", *arguments)

    def create(self) -> None:
        """The vhost, for the tests' own client; nobody else has any rights yet."""
        self.control("add_vhost", self.name)
        self._allow(make_url(self._server.url).username or "")

    def let_relay_in(self) -> None:
        self._allow(self.user)

    def url(self, **user: str) -> str:
        changed = make_url(self._server.url).set(database=self.name, **user)
        return changed.render_as_string(hide_password=False)

    def delete(self) -> None:
        self.control("delete_vhost", self.name)

    def _allow(self, user: str) -> None:
        self.control("set_permissions", "-p", self.name, user, ".*", ".*", ".*")


@pytest.fixture(scope="module")
def vhost(own_rabbitmq: OwnServer) -> Iterator[OwnVhost]:
    """One for all tests, which leave it as it was: each call of `rabbitmqctl` takes most of a second."""
    made = OwnVhost(own_rabbitmq)
    made.let_relay_in()
    yield made
    made.delete()
    made.control("delete_user", made.user)


@pytest.fixture
def in_vhost(vhost: OwnVhost, postgresql_url: str, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment in that vhost; its relay has a user of its own."""
    client = PlainClient(vhost.url())
    made = Deployment(postgresql_url, client, tmp_path)
    made.environment["OUTBOXKIT_BROKER_URL"] = vhost.url(username=vhost.user, password=vhost.password)
    yield made
    made.close()
    client.disconnect()


def test_it_starts_with_a_wrong_password(deployment: Deployment):
    right = make_url(deployment.broker.url)
    wrong = right.set(password="another-one").render_as_string(hide_password=False)
    ended = deployment.outboxkit("relay", OUTBOXKIT_LOG_LEVEL="error", OUTBOXKIT_BROKER_URL=wrong)
    assert ended.returncode == 2
    assert f"are user '{right.username}' and the password in OUTBOXKIT_BROKER_URL right?" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert "another-one" not in ended.stderr


def test_its_password_is_changed_meanwhile(in_vhost: Deployment, vhost: OwnVhost):
    witness = begin(in_vhost)
    vhost.control("change_password", vhost.user, "another-one")
    vhost.control("close_all_user_connections", vhost.user, "a new password")
    witness.send()
    witness.assert_refused("broker", "ACCESS_REFUSED")
    witness.assert_status(waiting=4)
    vhost.control("change_password", vhost.user, vhost.password)
    witness.assert_all_arrived("broker", is_refusal=True)


def test_its_vhost_is_deleted_and_made_again(in_vhost: Deployment, vhost: OwnVhost):
    witness = begin(in_vhost)
    in_vhost.broker.disconnect()
    vhost.delete()
    witness.send()
    witness.assert_refused("broker", f"vhost {vhost.name} not found; is the name right?", f"vhost '{vhost.name}' is d")
    witness.assert_status(waiting=4)
    vhost.create()
    declare(in_vhost)
    vhost.let_relay_in()
    witness.assert_all_arrived("broker", is_refusal=True)


def test_its_queue_is_deleted_and_declared_again(deployment: Deployment):
    witness = begin(deployment)
    deployment.broker.delete_queue()
    witness.send(1)
    refused = witness.relay.wait_for("message not published")
    assert (refused["attempts"], refused["message_id"]) == (1, witness.sent[-1])
    assert refused["reason"].startswith("unroutable: NO_ROUTE: no queue is bound to exchange")
    assert [row.attempts > 0 for row in deployment.outbox_rows()] == [True]
    assert "1 pending" in deployment.outboxkit("status").stdout
    declare(deployment)
    witness.collect()
    assert set(witness.arrived) == set(witness.sent)
    assert witness.relay.stop() == 0
    assert not deployment.dead_letters()


def test_its_exchange_is_deleted_and_the_relay_declares_it_again(deployment: Deployment):
    witness = begin(deployment)
    deployment.broker.delete_exchange()
    witness.send(1)
    witness.assert_away("broker", "NOT_FOUND - no exchange")
    witness.relay.wait_for("broker is back, work goes on")
    witness.relay.wait_for("message not published")  # its bindings went with it
    declare(deployment)
    witness.collect()
    assert set(witness.arrived) == set(witness.sent)
    assert witness.relay.stop() == 0
    assert not deployment.dead_letters()


def test_the_first_of_two_is_away(deployment: Deployment):
    with ExitStack() as stack:
        (first, through_first), (second, through_second) = (
            stack.enter_context(deployment.broker_behind_proxy()) for _ in range(2)
        )
        first.refuse()
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=f"{through_first},{through_second}")
        assert second.turns > 0
        first.accept()
        second.refuse()
        witness.send()
        eventually(lambda: first.turns > 0)
        witness.collect()
        assert list(dict.fromkeys(witness.arrived)) == witness.sent
        assert witness.relay.stop() == 0
        assert not witness.relay.entries("message not published")
