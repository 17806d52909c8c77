"""Handlers that fail, and messages that cannot be handled: tried again or set aside, while others flow on."""

from decimal import Decimal

from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import (
    OrderBroken,
    OrderConfirmed,
    OrderRefused,
    send,
)
from tests.support.polling import eventually


def test_what_cannot_be_handled_ends_among_the_dead_letters_and_others_flow_on(deployment: Deployment):
    _, _ = deployment.consumer(OUTBOXKIT_MAX_ATTEMPTS="2"), deployment.relay()
    send(deployment.engine, OrderBroken(1), OrderRefused(2), OrderConfirmed(3, Decimal(1)))
    deployment.broker.publish(b"{", topic="OrderConfirmed", type="OrderConfirmed", message_id="no json")
    deployment.broker.publish(b"{}", topic="OrderConfirmed", type="OrderConfirmed")
    letters = eventually(deployment.dead_letters, lambda found: len(found) == 4)
    assert deployment.wait_for_effects(1) == {3: 1}
    assert {letter.reason: (letter.attempts, letter.error) for letter in letters} == {
        "failed": (2, "ValueError: cannot be handled"),
        "rejected": (1, "Reject: not wanted"),
        "undecodable": (1, letters_error(letters, "undecodable")),
        "malformed": (1, "the message has no message_id"),
    }
    assert eventually(deployment.broker.depth, lambda depth: depth == 0) == 0


def test_a_drained_relay_says_what_could_not_be_published(deployment: Deployment):
    deployment.broker.bind("OrderConfirmed")
    send(deployment.engine, OrderConfirmed(1, Decimal(1)), OrderRefused(2), OrderRefused(3))
    drained = deployment.outboxkit("relay", "--drain", OUTBOXKIT_LOG_LEVEL="error")
    assert (drained.returncode, drained.stdout) == (3, "")
    first, second, third = drained.stderr.splitlines()
    assert (first, second) == ("published 1", "2 wait for a later time")
    assert third.startswith("2 OrderRefused will be tried again: unroutable: NO_ROUTE")
    for row in deployment.outbox_rows():
        assert (row.type, row.attempts) == ("OrderRefused", 1)
        assert "NO_ROUTE" in row.last_error
        assert row.due_at > row.created_at
    deployment.broker.bind("OrderRefused")
    relay = deployment.relay()
    deployment.wait_for_empty_outbox()
    assert relay.stop() == 0
    assert deployment.broker.depth() == 3


def letters_error(letters: list, reason: str) -> str:
    return next(letter.error for letter in letters if letter.reason == reason)
