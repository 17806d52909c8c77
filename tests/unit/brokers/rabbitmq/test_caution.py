"""With which routing keys there is care, and for how long: by what the next wave of a batch may hold."""

import pytest

from outboxkit.brokers.rabbitmq import plan
from outboxkit.brokers.rabbitmq.plan import PublishPlan, SerializedRoutes
from tests.unit.shop import message


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def prove(care: SerializedRoutes) -> None:
    """Every routing key of these tests has reached a queue before."""
    for route in (message().routing_key, "good", "lost"):
        care.proven(route)


def test_after_a_nack_there_is_care_with_everything_for_a_while():
    clock = Clock()
    care = SerializedRoutes(clock)
    prove(care)
    care.nacked()
    assert care.doubts({"good", "lost"}) == {"good", "lost"}
    clock.now += plan.CARE_SECONDS + 1
    assert care.doubts({"good", "lost"}) == set()


def test_a_routing_key_that_the_probe_did_not_have_is_probed_itself():
    care = SerializedRoutes(Clock())
    care.proven("good")
    keyed = [message(id=str(n), key=topic, topic=topic) for n, topic in enumerate(["good", "lost", "good", "lost"])]
    assert PublishPlan(keyed, care).next_wave() == [0, 1, 2]


def test_a_new_connection_has_proven_nothing():
    care = SerializedRoutes(Clock())
    prove(care)
    care.connected()
    assert PublishPlan([message(id=str(n), key="one") for n in range(3)], care).next_wave() == [0]


def test_after_a_return_there_is_care_with_its_routing_key_only_and_for_a_while():
    clock = Clock()
    care = SerializedRoutes(clock)
    prove(care)
    care.unroutable(message(topic="lost"))
    batch_ = [message(id=str(n), key=topic, topic=topic) for n, topic in enumerate(["good", "good", "lost", "lost"])]
    assert PublishPlan(batch_, care).next_wave() == [0, 1, 2]
    clock.now += plan.CARE_SECONDS - 1
    assert PublishPlan(batch_, care).next_wave() == [0, 1, 2]
    clock.now += 2
    assert PublishPlan(batch_, care).next_wave() == [0, 1, 2], "it has not been seen to arrive since"
    care.proven("lost")
    assert PublishPlan(batch_, care).next_wave() == [0, 1, 2, 3]


def test_even_a_routing_key_that_arrives_again_is_handled_with_care_for_a_while():
    clock = Clock()
    care = SerializedRoutes(clock)
    prove(care)
    care.unroutable(message(topic="lost"))
    care.proven("lost")
    batch_ = [message(id=str(n), key="one", topic="lost") for n in range(3)]
    clock.now += plan.CARE_SECONDS - 1
    assert PublishPlan(batch_, care).next_wave() == [0]
    clock.now += 2
    assert PublishPlan(batch_, care).next_wave() == [0, 1, 2]


def test_more_routing_keys_than_are_remembered_are_proven_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "PROVEN_ROUTES", 2)
    care = SerializedRoutes(Clock())
    for route in "abc":
        care.proven(route)
    assert care.doubts(set("abc")) == {"a", "b"}


def test_a_queue_is_a_route_of_its_own():
    care = SerializedRoutes(Clock())
    care.proven("OrderConfirmed")
    to_queue = [message(id=str(n), key="one", headers={"outboxkit-queue": "OrderConfirmed"}) for n in range(3)]
    assert PublishPlan(to_queue, care).next_wave() == [0]
    care.unroutable(to_queue[0])
    assert PublishPlan([message(id=str(n), key="one") for n in range(3)], care).next_wave() == [0, 1, 2]
    care = SerializedRoutes(Clock())
    care.proven(plan.route(to_queue[0]))
    assert PublishPlan(to_queue, care).next_wave() == [0, 1, 2]
