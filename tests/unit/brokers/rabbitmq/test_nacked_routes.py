"""What nacks mean for a route and for the connection, decided with a clock that stands."""

import pytest

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import routes
from outboxkit.brokers.rabbitmq.confirms import NACKED
from outboxkit.brokers.rabbitmq.plan import PublishPlan
from outboxkit.brokers.rabbitmq.routes import NACK_DELAYS, NackedRoutes, SerializedRoutes
from tests.unit.shop import message


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


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
    assert len(publishing.serialized.nacked.take_warnings()) == 1, "told once a minute"
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
    clock.now += routes.QUIET_SECONDS + 1
    assert nacked.allow_reconnect()
    clock.now += routes.RECONNECT_SECONDS * 1.01
    assert nacked.allow_reconnect()


def test_no_more_routes_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "MAX_ROUTES", 2)
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


def test_warnings_of_endlessly_many_routes_take_no_more_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "MAX_ROUTES", 3)
    nacked = NackedRoutes(Clock())
    for number in range(8):
        nacked.record_nack(f"r-{number}", f"reason {number}", retry_on_new_connection=False)
        assert max(len(nacked._routes), len(nacked._warned_at)) <= 3
    assert nacked.take_warnings() == [f"reason {number}" for number in range(8)]
