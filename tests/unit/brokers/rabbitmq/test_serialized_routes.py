"""Serialized routes, and for how long they are: by what the next group of a batch may hold."""

import pytest

from outboxkit.brokers.rabbitmq import routes
from outboxkit.brokers.rabbitmq.plan import PublishPlan
from outboxkit.brokers.rabbitmq.routes import SerializedRoutes, route_of
from tests.unit.shop import message


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def confirm_all(serialized: SerializedRoutes) -> None:
    """Every routing key of these tests has reached a queue before."""
    for route in (message().routing_key, "good", "lost"):
        serialized.record_confirm(route)


def test_a_nack_serializes_all_routes_for_a_while():
    clock = Clock()
    serialized = SerializedRoutes(clock)
    confirm_all(serialized)
    serialized.record_nack()
    assert serialized.among({"good", "lost"}) == {"good", "lost"}
    clock.now += routes.SERIALIZED_SECONDS + 1
    assert serialized.among({"good", "lost"}) == set()


def test_a_routing_key_that_the_probe_did_not_have_is_probed_itself():
    serialized = SerializedRoutes(Clock())
    serialized.record_confirm("good")
    keyed = [message(id=str(n), key=topic, topic=topic) for n, topic in enumerate(["good", "lost", "good", "lost"])]
    assert PublishPlan(keyed, serialized).next_group() == [0, 1, 2]


def test_a_new_connection_has_no_confirmed_route():
    serialized = SerializedRoutes(Clock())
    confirm_all(serialized)
    serialized.reset_confirmed()
    assert PublishPlan([message(id=str(n), key="one") for n in range(3)], serialized).next_group() == [0]


def test_a_return_serializes_its_route_only_and_for_a_while():
    clock = Clock()
    serialized = SerializedRoutes(clock)
    confirm_all(serialized)
    serialized.record_return(route_of(message(topic="lost")))
    batch_ = [message(id=str(n), key=topic, topic=topic) for n, topic in enumerate(["good", "good", "lost", "lost"])]
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2]
    clock.now += routes.SERIALIZED_SECONDS - 1
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2]
    clock.now += 2
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2], "it has not been seen to arrive since"
    serialized.record_confirm("lost")
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2, 3]


def test_even_a_route_that_is_confirmed_again_stays_serialized_for_a_while():
    clock = Clock()
    serialized = SerializedRoutes(clock)
    confirm_all(serialized)
    serialized.record_return(route_of(message(topic="lost")))
    serialized.record_confirm("lost")
    batch_ = [message(id=str(n), key="one", topic="lost") for n in range(3)]
    clock.now += routes.SERIALIZED_SECONDS - 1
    assert PublishPlan(batch_, serialized).next_group() == [0]
    clock.now += 2
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2]


def test_more_routes_than_are_remembered_must_be_confirmed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "MAX_ROUTES", 2)
    serialized = SerializedRoutes(Clock())
    for route in "abc":
        serialized.record_confirm(route)
    assert serialized.among(set("abc")) == {"a", "b"}


def test_a_queue_is_a_route_of_its_own():
    serialized = SerializedRoutes(Clock())
    serialized.record_confirm("OrderConfirmed")
    to_queue = [message(id=str(n), key="one", queue="OrderConfirmed") for n in range(3)]
    assert PublishPlan(to_queue, serialized).next_group() == [0]
    serialized.record_return(route_of(to_queue[0]))
    assert PublishPlan([message(id=str(n), key="one") for n in range(3)], serialized).next_group() == [0, 1, 2]
    serialized = SerializedRoutes(Clock())
    serialized.record_confirm(route_of(to_queue[0]))
    assert PublishPlan(to_queue, serialized).next_group() == [0, 1, 2]
