"""A broker that cannot be published to: the relay says so once, waits, and goes on by itself.

A broker that is down is in `test_order.py`.
"""

from contextlib import ExitStack

from sqlalchemy import make_url

from tests.acceptance.deployment import Deployment
from tests.acceptance.witness import begin
from tests.integration.broker.broker_users import broker_user
from tests.servers import OwnServer
from tests.support.polling import eventually


def test_it_refuses_connections(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through)
        proxy.refuse()
        witness.send()
        witness.relay.assert_away("broker", f"cannot connect to amqp://127.0.0.1:{proxy.port}", "lost", "closed")
        witness.assert_status(waiting=4)
        proxy.accept()
        witness.assert_all_arrived("broker")


def test_it_never_confirms(deployment: Deployment):
    with deployment.broker_behind_proxy() as (proxy, through):
        witness = begin(deployment, OUTBOXKIT_BROKER_URL=through, OUTBOXKIT_PUBLISH_TIMEOUT="1s")
        proxy.swallow()
        witness.send()
        witness.relay.assert_away("broker", "the broker did not answer in time")
        witness.assert_status(waiting=4)
        proxy.release()
        witness.assert_all_arrived("broker")


def test_its_password_is_changed_meanwhile(on_own_rabbitmq: Deployment, own_rabbitmq: OwnServer):
    with broker_user(own_rabbitmq, configure=".*", write=".*", read=".*") as url:
        user, password = make_url(url).username or "", make_url(url).password or ""
        witness = begin(on_own_rabbitmq, OUTBOXKIT_BROKER_URL=url)
        own_rabbitmq.execute("rabbitmqctl", "change_password", user, "another-one")
        own_rabbitmq.execute("rabbitmqctl", "close_all_user_connections", user, "a new password")
        witness.send()
        witness.relay.assert_away("broker", "ACCESS_REFUSED", says="refuses this process, waiting")
        witness.assert_status(waiting=4)
        own_rabbitmq.execute("rabbitmqctl", "change_password", user, password)
        witness.assert_all_arrived("broker", is_refusal=True)


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
