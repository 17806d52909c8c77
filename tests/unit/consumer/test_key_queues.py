"""The queues, against a model that looks at every arrival each time."""

from datetime import timedelta
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outboxkit.brokers import Delivery
from outboxkit.consumer.key_queues import KeyQueues
from outboxkit.consumer.routing import Arrival, Mode
from tests.support.night import by_night

KEYS = st.none() | st.sampled_from(["a", "b", "c"])
NO_DELIVERY = cast("Delivery", None)


class LanesMachine(RuleBasedStateMachine):
    """Whatever is taken may be taken, and whatever may be taken is found."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = KeyQueues()
        self.waiting: list[Arrival] = []
        self.running: list[list[Arrival]] = []
        self.blocked: list[str] = []

    def may_start(self, arrival: Arrival, ours: tuple[Arrival, ...] = ()) -> bool:
        if arrival.key is None:
            return True
        taken = {one.key for group in self.running for one in group} | set(self.blocked)
        earlier = [one for one in self.waiting if one.key == arrival.key and one.number < arrival.number]
        return arrival.key not in taken and all(one in ours for one in earlier)

    @rule(way=st.sampled_from(Mode), key=KEYS)
    def add(self, way: Mode, key: str | None) -> None:
        arrival = Arrival(NO_DELIVERY, way, key)
        self.queues.add(arrival)
        self.waiting.append(arrival)

    @rule(way=st.sampled_from(Mode))
    def take(self, way: Mode) -> None:
        wanted = next((one for one in self.waiting if one.mode is way and self.may_start(one)), None)
        found = self.queues.first(way)
        assert found is wanted
        if found is not None:
            assert self.queues.take(found) is found
            self.waiting.remove(found)
            self.running.append([found])

    @rule(limit=st.integers(1, 4))
    def take_batch(self, limit: int) -> None:
        wanted: list[Arrival] = []
        for one in self.waiting:
            if len(wanted) < limit and one.mode is Mode.BATCHED and self.may_start(one, tuple(wanted)):
                wanted.append(one)
        assert self.queues.take_batch(limit, 10**6) == wanted
        self.waiting = [one for one in self.waiting if one not in wanted]
        if wanted:
            self.running.append(wanted)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish_and_put_back_some(self, data: st.DataObject) -> None:
        group = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        first_left = data.draw(st.integers(0, len(group)))
        done, left = group[:first_left], group[first_left:]
        self.queues.free(done)
        self.queues.put_back(left)
        self.waiting = sorted([*self.waiting, *left], key=lambda arrival: arrival.number)

    @rule(key=st.sampled_from(["a", "b", "c"]))
    def block(self, key: str) -> None:
        self.queues.block(key)
        self.blocked.append(key)

    @precondition(lambda self: self.blocked)
    @rule()
    def unblock(self) -> None:
        self.queues.unblock(self.blocked.pop())

    @rule()
    def clear(self) -> None:
        assert self.queues.clear() == self.waiting
        self.waiting = []

    @invariant()
    def counts(self) -> None:
        for way in Mode:
            assert self.queues.waiting(way) == sum(one.mode is way for one in self.waiting)


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(max_examples=by_night(1000, else_=50), stateful_step_count=40, deadline=None)


def test_without_keys_everything_may_start_in_the_order_of_its_arrival():
    queues = KeyQueues()
    arrivals = [Arrival(NO_DELIVERY, Mode.SINGLE) for _ in range(3)]
    for arrival in arrivals:
        queues.add(arrival)
    assert [queues.take(first) for _ in arrivals if (first := queues.first(Mode.SINGLE))] == arrivals


@pytest.mark.parametrize("way", Mode)
def test_a_key_queue_waits_for_the_one_before_however_each_is_handled(way: Mode):
    queues = KeyQueues()
    first, second = Arrival(NO_DELIVERY, Mode.SINGLE, "a"), Arrival(NO_DELIVERY, way, "a")
    queues.add(first)
    queues.add(second)
    queues.take(first)
    assert queues.first(way) is None
    first.waits = timedelta(seconds=1)
    queues.block("a")
    queues.put_back([first])
    assert queues.first(way) is None
    queues.unblock("a")
    assert queues.first(Mode.SINGLE) is first


def test_a_batch_has_no_more_bytes_than_it_may_unless_one_alone_has():
    queues = KeyQueues()
    arrivals = [Arrival(None, Mode.BATCHED, room=room) for room in (900, 5, 5, 3)]  # type: ignore[arg-type]
    for arrival in arrivals:
        queues.add(arrival)
    assert [[one.room for one in queues.take_batch(9, 10)] for _ in range(3)] == [[900], [5, 5], [3]]
