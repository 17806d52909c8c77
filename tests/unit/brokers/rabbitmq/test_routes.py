"""What is remembered of routes, by a clock that stands: by what the next group of a batch may hold, and by nacks."""

import pytest

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import plan as module
from outboxkit.brokers.rabbitmq.confirms import NACKED
from outboxkit.brokers.rabbitmq.plan import NACK_DELAYS, NackedRoutes, PublishPlan, SerializedRoutes, route_of
from tests.unit.brokers.rabbitmq.test_plan import Clock, confirm_all
from tests.unit.shop import message


def test_a_nack_serializes_all_routes_for_a_while():
    clock = Clock()
    serialized = SerializedRoutes(clock)
    confirm_all(serialized)
    serialized.record_nack()
    assert serialized.among({"good", "lost"}) == {"good", "lost"}
    clock.now += module.SERIALIZED_SECONDS + 1
    assert serialized.among({"good", "lost"}) == set()


def test_a_routing_key_that_the_probe_did_not_have_is_probed_itself():
    serialized = SerializedRoutes(Clock())
    serialized.record_confirm("good")
    keyed = [message(id=str(n), key=topic, topic=topic) for n, topic in enumerate(["good", "lost", "good", "lost"])]
    assert PublishPlan(keyed, serialized).next_group() == [0, 1, 2]


def test_a_return_serializes_its_route_only_and_for_a_while():
    clock = Clock()
    serialized = SerializedRoutes(clock)
    confirm_all(serialized)
    serialized.record_return(route_of(message(topic="lost")))
    batch_ = [message(id=str(n), key=topic, topic=topic) for n, topic in enumerate(["good", "good", "lost", "lost"])]
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2]
    clock.now += module.SERIALIZED_SECONDS + 1
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2], "it has not been seen to arrive since"
    serialized.record_return(route_of(message(topic="lost")))
    serialized.record_confirm("lost")
    clock.now += module.SERIALIZED_SECONDS - 1
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2], "it was returned a short while ago"
    clock.now += 2
    assert PublishPlan(batch_, serialized).next_group() == [0, 1, 2, 3]


def test_more_routes_than_are_remembered_must_be_confirmed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_ROUTES", 2)
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


class Publishing:
    """A publisher's memory, and batches that are answered as a test says."""

    def __init__(self, *routes: str) -> None:
        self.clock = Clock()
        self.serialized = SerializedRoutes(self.clock)
        for route in routes:
            self.serialized.record_confirm(route)

    def publish(self, *topics: str, full: tuple[str, ...] = (), room: int = 0, key: str | None = None) -> "Publishing":
        """A batch with these topics; those in `full` are nacked but for as many as there is room for."""
        messages = [message(id=str(number), topic=topic, key=key) for number, topic in enumerate(topics)]
        plan = PublishPlan(messages, self.serialized)
        self.groups = []
        self.wants_connection = plan.needs_new_connection(self.clock.now - 0.01)
        while group := plan.next_group():
            sent = [index for index in group if not plan.is_blocked(index)]
            self.groups.append([messages[index].topic for index in sent])
            for index in sent:
                takes = messages[index].topic not in full or room > 0
                room -= messages[index].topic in full
                plan.receipts[index] = CONFIRMED if takes else NACKED
            plan.record_refused([index for index in sent if plan.receipts[index] is NACKED])
        self.receipts: list[Receipt] = plan.finish("out of time")
        return self

    @property
    def verdicts(self) -> list[str]:
        return [str(receipt.verdict) for receipt in self.receipts]

    def wait(self) -> "Publishing":
        """Until what was postponed is due."""
        self.clock.now += max((r.after.total_seconds() for r in self.receipts if r.after is not None), default=0.0)
        return self


def test_nacks_of_all_that_goes_to_a_route_say_nothing_at_first_and_others_go_on():
    publishing = Publishing("a", "b").publish("a", "b", "a", full=("a",))
    assert publishing.verdicts == ["unknown", "confirmed", "unknown"]
    assert "nacked all for routing key 'a'" in str(publishing.receipts[0].reason)
    publishing.publish("a", "b", "a")
    assert publishing.wants_connection
    assert publishing.verdicts == ["confirmed"] * 3
    assert publishing.groups == [["a", "b"], ["a"]], "one goes ahead"
    assert not publishing.publish("a", "a").wants_connection
    assert publishing.groups == [["a", "a"]]


def test_what_a_new_connection_nacks_too_waits_longer_each_time_and_is_never_blamed():
    publishing = Publishing("a", "b").publish("a", full=("a",))
    waited = []
    for _ in range(8):
        publishing.wait().publish("a", "a", "b", full=("a",))
        assert publishing.wants_connection, "another node may know the queue's leader"
        assert publishing.verdicts == ["postponed", "postponed", "confirmed"]
        assert publishing.groups == [["a", "b"]], "one goes ahead, and alone"
        waited.append(publishing.receipts[0].after.total_seconds())
    assert waited == [*NACK_DELAYS[1:], *NACK_DELAYS[-1:] * 2]
    assert "on a new connection too: for routing key 'a' a queue is full, or has no leader" in str(
        publishing.receipts[1].reason
    )
    publishing.publish("a", "b")
    assert (publishing.verdicts, publishing.groups) == (["postponed", "confirmed"], [["b"]]), "its pause is not over"
    assert publishing.wait().publish("a", "a").verdicts == ["confirmed"] * 2


def test_a_queue_that_takes_some_is_full_and_the_connection_is_right():
    publishing = Publishing("a").publish("a", "a", "a", full=("a",), room=1)
    assert publishing.verdicts == ["confirmed", "postponed", "postponed"]
    assert "a queue is full" in str(publishing.receipts[1].reason)
    for _ in range(3):
        publishing.wait().publish("a", "a", "a", full=("a",), room=2)
        assert not publishing.wants_connection
        assert publishing.verdicts == ["confirmed", "confirmed", "postponed"]
        assert publishing.receipts[2].after.total_seconds() == NACK_DELAYS[1]
    assert publishing.wait().publish("a", full=("a",)).verdicts == ["postponed"]
    assert publishing.wait().publish("a", full=("a",)).wants_connection


def test_a_key_stays_in_order_behind_what_waits_for_its_route():
    publishing = Publishing("a", "b").publish("a", "a", full=("a",), key="k")
    assert publishing.verdicts == ["unknown", "unknown"], "both were on their way"
    assert publishing.publish("a", "b", "a", full=("a",), key="k").verdicts == ["postponed", "not sent", "not sent"]
    assert publishing.publish("a", "b", key="k").verdicts == ["postponed", "not sent"]
    assert publishing.wait().publish("a", "b", "a", key="k").verdicts == ["confirmed"] * 3


def test_new_connections_are_far_apart_where_nacks_go_on():
    clock = Clock()
    nacked = NackedRoutes(clock)
    opened = 0
    for _ in range(6000):
        clock.now += 0.01
        opened += nacked.allow_reconnect()
    assert 10 < opened < 25
    clock.now += module.QUIET_SECONDS + 1
    assert nacked.allow_reconnect()
    clock.now += module.RECONNECT_SECONDS * 1.01
    assert nacked.allow_reconnect()


def test_no_more_routes_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_ROUTES", 2)
    nacked = NackedRoutes(Clock())
    for route in "abc":
        nacked.record_nack(route, "full", retry_on_new_connection=True)
    assert [route in nacked for route in "abc"] == [False, False, True]


def test_what_no_answer_came_for_stays_unknown_beside_a_nack():
    serialized = SerializedRoutes(Clock())
    serialized.record_confirm("a")
    plan = PublishPlan([message(id=str(number), topic="a") for number in range(2)], serialized)
    plan.next_group()
    plan.receipts[0] = NACKED
    plan.record_refused([0])
    assert [receipt.verdict for receipt in plan.finish("lost")] == [Verdict.UNKNOWN, Verdict.UNKNOWN]


def test_the_first_nack_of_a_connection_serializes_keys_too():
    """A full queue has room again: what was nacked first must not be overtaken by what leaves with it."""
    publishing = Publishing().publish("a", "a", key="one", full=("a",)).wait()
    publishing.clock.now += 1
    publishing.publish("a", "a", "a", "a", key="one", full=("a",), room=1)
    assert publishing.groups[:2] == [["a"], ["a"]]
    assert publishing.verdicts == ["confirmed", "postponed", "not sent", "not sent"]
