"""Pauses as an operator has them: commands beside running processes, restarts, stops and drains."""

from sqlalchemy import select

from outboxkit import tables
from outboxkit.codec import payloads
from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import GATE, OrderConfirmed, OrderGated, send
from tests.support.polling import eventually

WHY = ("--why", "the bank is being moved", "--by", "ada")


def run(deployment: Deployment, *arguments: str, code: int = 0) -> str:
    ended = deployment.outboxkit(*arguments)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


def test_a_relay_is_paused_restarted_stopped_and_resumed(deployment: Deployment):
    deployment.declare_queue()
    relay = deployment.relay()
    send(deployment.engine, OrderConfirmed(1, 1))
    deployment.wait_for_empty_outbox()
    run(deployment, "pause", "relay", *WHY)
    assert relay.wait_for("relay paused")["why"] == "the bank is being moved"
    send(deployment.engine, OrderConfirmed(2, 1))
    assert relay.stop() == 0
    again = deployment.relay()
    again.wait_for("relay paused")
    assert "the relay of destination default is paused since" in run(deployment, "relay", "--drain", code=3)
    assert (deployment.pending(), deployment.broker.depth()) == (1, 1)
    assert "the relay of destination default since" in run(deployment, "status")
    run(deployment, "resume", "relay")
    deployment.wait_for_empty_outbox()
    assert (again.stop(), deployment.broker.depth()) == (0, 2)
    assert [entry["event"] for entry in again.entries() if entry["level"] in ("warning", "error")] == []


def test_a_relay_that_does_not_answer_to_a_pause_is_named(deployment: Deployment):
    deployment.declare_queue()
    relays = [deployment.relay(), deployment.relay()]
    for relay in relays:
        relay.wait_for("relay started")
    with relays[0].frozen():
        told = run(deployment, "pause", "relay", *WHY)
        assert "\n1 of at least 2 relays holds; " in told
        assert told.strip().endswith("not acknowledged the pause, and may go on")
        advice = " ".join(run(deployment, "status").split())
        assert "problem: Of relay default, which is paused, 1 of at least 2 relays holds; " in advice
    relays[0].wait_for("relay paused")
    eventually(lambda: run(deployment, "pause", "relay", *WHY), lambda told: told.endswith("\n2 relays hold\n"))
    told = " ".join(run(deployment, "status").split())
    assert "outboxkit resume relay" in told
    assert "not acknowledged" not in told
    run(deployment, "resume", "relay")
    assert [relay.stop() for relay in relays] == [0, 0]


def test_a_consumer_is_paused_at_work_restarted_stopped_and_resumed(deployment: Deployment):
    consumer = deployment.consumer(OUTBOXKIT_CONCURRENCY="1")
    queue = deployment.broker.queue
    with deployment.lock_held(GATE):
        for number in range(5):
            body, id_ = payloads.encode(OrderGated(number)), f"gated-{number}"
            deployment.broker.publish(body, topic="OrderGated", type="OrderGated", message_id=id_)
        eventually(lambda: deployment.waiting_on("advisory") == 1)
        run(deployment, "pause", queue, *WHY)
        consumer.wait_for("pausing when the running handlers have ended")
    consumer.wait_for("consumer paused")
    assert run(deployment, "pause", queue, *WHY).endswith("\n1 consumer holds\n")
    assert deployment.effects().total() == 1, "what was in hand is finished"
    eventually(deployment.broker.depth, lambda depth: depth == 4)
    assert consumer.stop() == 0
    again = deployment.start("consumer", "tests.acceptance.shop")
    again.wait_for("consumer paused")
    drained = run(deployment, "consume", "tests.acceptance.shop", "--drain", code=3)
    assert f"queue {queue} is paused since" in drained
    assert "nothing to do" not in drained
    assert deployment.effects().total() == 1
    run(deployment, "resume", queue)
    assert set(deployment.wait_for_effects(5).values()) == {1}
    assert again.stop() == 0
    with deployment.engine.connect() as connection:
        assert set(connection.execute(select(tables.inbox.c.attempts)).scalars()) == {1}
    assert [entry["event"] for entry in again.entries() if entry["level"] in ("warning", "error")] == []
