"""What the cases are made of."""

import pytest

from outboxkit.brokers import Verdict
from outboxkit.testing.conformance import calling
from outboxkit.testing.conformance.calling import Route
from tests.unit.testing.conformance.faults import Memory


async def test_each_route_has_a_type_and_a_queue_of_its_own():
    broker = Memory()
    async with Route(broker) as one, Route(broker) as other:
        assert await one.send(one.message("1")) == [Verdict.CONFIRMED]
        assert (await one.next()).message.payload == b"1"
        assert await other.subscriber.receive(wait=False) is None


async def test_what_does_not_arrive_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calling, "PATIENCE", 0.01)
    async with Route(Memory()) as made:
        with pytest.raises(TimeoutError):
            await made.next()
