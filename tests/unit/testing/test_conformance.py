"""The suite for brokers finds what is wrong with one: each case has a fault that it alone is there for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Subscriber
from outboxkit.brokers.memory import MemoryBroker, MemoryDelivery, MemoryPublisher, MemorySubscriber
from outboxkit.message import Message
from outboxkit.testing import conformance


class Memory:
    """The memory broker, with a publisher or a subscriber that may be faulty."""

    def __init__(
        self,
        publisher: Callable[[MemoryBroker], Publisher] = MemoryPublisher,
        subscriber: Callable[..., Subscriber] = MemorySubscriber,
    ) -> None:
        self.broker = MemoryBroker()
        self.make_publisher = publisher
        self.make_subscriber = subscriber

    def publisher(self) -> Publisher:
        return self.make_publisher(self.broker)

    def subscriber(self, queue: str, topics: Sequence[str], ladder: Sequence[timedelta]) -> Subscriber:
        return self.make_subscriber(self.broker, queue, topics, ladder)


class ForgetsTheKey(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([replace(message, key=None) for message in batch])


class MixesUpTheOrder(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish(batch[::-1])


class ConfirmsEverything(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        await super().publish(batch)
        return [CONFIRMED] * len(batch)


class HoldsNothingBack(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return [receipt for message in batch for receipt in await super(HoldsNothingBack, self).publish([message])]


class AnswersById(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        by_id = dict(zip((message.id for message in batch), await super().publish(batch), strict=True))
        return [by_id[message.id] for message in batch]


class CutsBodies(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([replace(message, payload=message.payload[:131_064]) for message in batch])


class CannotBeClosedTwice(MemoryPublisher):
    closed = False

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


class SharesOneQueue(MemorySubscriber):
    def __init__(self, broker: MemoryBroker, queue: str, topics: Sequence[str], ladder: Sequence[timedelta]) -> None:
        super().__init__(broker, "one for all", topics, ladder)


class NeverLooks(MemorySubscriber):
    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        return await super().receive(wait=wait) if wait else None


class CountsAReleaseAsAnAttempt(MemorySubscriber):
    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        delivery = await super().receive(wait=wait)
        if delivery is not None:
            delivery.marks.attempt += 1
        return delivery


class LosesWhatIsNotAcked(MemorySubscriber):
    async def close(self) -> None:
        self.unacked.clear()


class NeverClimbs(MemorySubscriber):
    @property
    def ladder(self) -> Sequence[timedelta]:
        return (timedelta(0),)

    @ladder.setter
    def ladder(self, value: Sequence[timedelta]) -> None: ...


FAULTS = {
    conformance.a_confirmed_message_arrives_as_it_was: Memory(ForgetsTheKey),
    conformance.messages_arrive_in_the_order_of_their_batch: Memory(MixesUpTheOrder),
    conformance.messages_of_a_key_arrive_in_order_among_others: Memory(MixesUpTheOrder),
    conformance.a_failed_message_holds_back_the_rest_of_its_key_only: Memory(HoldsNothingBack),
    conformance.the_same_message_twice_in_a_batch_has_two_receipts: Memory(AnswersById),
    conformance.a_large_batch_of_large_messages_arrives_whole: Memory(CutsBodies),
    conformance.an_unroutable_message_is_no_confirmed_one: Memory(ConfirmsEverything),
    conformance.every_queue_gets_its_copy: Memory(subscriber=SharesOneQueue),
    conformance.an_empty_queue_says_so: Memory(subscriber=NeverLooks),
    conformance.a_released_message_comes_again_as_the_same_attempt: Memory(subscriber=CountsAReleaseAsAnAttempt),
    conformance.what_is_not_acked_comes_again_after_a_disconnect: Memory(subscriber=LosesWhatIsNotAcked),
    conformance.a_retried_message_comes_later_as_the_next_attempt: Memory(subscriber=NeverClimbs),
    conformance.a_closed_publisher_can_connect_again: Memory(CannotBeClosedTwice),
}


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_a_good_broker_passes(case: conformance.Case):
    await case(Memory())


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_a_faulty_broker_fails(case: conformance.Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conformance, "PATIENCE", 0.05)
    with pytest.raises((AssertionError, TimeoutError)):
        await case(FAULTS[case])
