"""Brokers with a fault each, and the case of the suite that is there to find it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from outboxkit.brokers import Publisher, Receipt, Subscriber
from outboxkit.brokers.memory import MemoryBroker, MemoryDelivery, MemoryPublisher, MemorySubscriber
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.message import Message
from outboxkit.testing.conformance import publishing, receiving


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

    def subscriber(self, queue: str, topics: Sequence[str], delays: Sequence[timedelta]) -> Subscriber:
        return self.make_subscriber(self.broker, queue, topics, delays)


class ForgetsTheKey(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([replace(message, key=None) for message in batch])


class MixesUpTheOrder(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish(batch[::-1])


class AnswersOncePerId(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish(list({message.id: message for message in batch}.values()))


class SharesOneBatch(MemoryPublisher):
    batches: dict[int, Sequence[Message]] = {}  # noqa: RUF012

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish(self.batches.setdefault(id(self._broker), batch))


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
    def __init__(self, broker: MemoryBroker, queue: str, topics: Sequence[str], delays: Sequence[timedelta]) -> None:
        super().__init__(broker, "one for all", topics, delays)


class NeverLooks(MemorySubscriber):
    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        return await super().receive(wait=wait) if wait else None


class CountsAReleaseAsAnAttempt(MemorySubscriber):
    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        delivery = await super().receive(wait=wait)
        if delivery is not None:
            delivery._entry = replace(
                delivery._entry, delivery_headers=DeliveryHeaders(attempt=delivery.delivery_headers.attempt + 1)
            )
        return delivery


class Faulty(MemorySubscriber):
    """Hands out deliveries that settle wrongly."""

    delivery: type[MemoryDelivery] = MemoryDelivery

    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        delivery = await super().receive(wait=wait)
        return None if delivery is None else self.delivery(delivery._entry, self)


class ForgetsHandlers(Faulty):
    class delivery(MemoryDelivery):  # noqa: N801
        async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
            return await MemoryDelivery.retry(self, after)


class DoesNotCount(Faulty):
    class delivery(MemoryDelivery):  # noqa: N801
        @property
        def redeliveries(self) -> int:
            return 0


class RenewsByRelease(Faulty):
    class delivery(MemoryDelivery):  # noqa: N801
        async def requeue_fresh(self) -> None:
            await self.requeue()


class KnowsNoAddress(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([replace(each, queue=None) for each in batch])


class NeverCeases(MemorySubscriber):
    async def stop_receiving(self) -> None: ...


class LosesWhatIsNotAcked(MemorySubscriber):
    async def close(self) -> None:
        self.unacked.clear()


class NeverClimbs(MemorySubscriber):
    @property
    def delays(self) -> Sequence[timedelta]:
        return (timedelta(0),)

    @delays.setter
    def delays(self, value: Sequence[timedelta]) -> None: ...


FAULTS = {
    publishing.a_confirmed_message_arrives_as_it_was: Memory(ForgetsTheKey),
    publishing.messages_of_a_key_arrive_in_order_among_others: Memory(MixesUpTheOrder),
    publishing.a_failed_message_holds_back_the_rest_of_its_key_only: Memory(HoldsNothingBack),
    publishing.one_id_twice_in_a_batch_has_two_receipts: Memory(AnswersOncePerId),
    publishing.publishers_do_not_get_into_each_others_way: Memory(SharesOneBatch),
    publishing.a_large_batch_of_large_messages_arrives_whole: Memory(CutsBodies),
    publishing.an_unroutable_message_is_no_confirmed_one: Memory(AnswersById),
    publishing.every_queue_gets_its_copy: Memory(subscriber=SharesOneQueue),
    receiving.an_empty_queue_says_so: Memory(subscriber=NeverLooks),
    receiving.a_released_message_comes_again_as_the_same_attempt: Memory(subscriber=CountsAReleaseAsAnAttempt),
    receiving.what_is_not_acked_comes_again_after_a_disconnect: Memory(subscriber=LosesWhatIsNotAcked),
    receiving.a_retried_message_comes_later_as_the_next_attempt: Memory(subscriber=NeverClimbs),
    receiving.what_is_noted_on_a_message_travels_with_its_retries: Memory(subscriber=ForgetsHandlers),
    receiving.the_broker_counts_how_often_a_message_came_back: Memory(subscriber=DoesNotCount),
    receiving.a_renewed_message_comes_again_behind_the_others: Memory(subscriber=RenewsByRelease),
    publishing.an_addressed_message_goes_to_its_queue_alone: Memory(KnowsNoAddress),
    receiving.one_that_ceased_takes_no_more: Memory(subscriber=NeverCeases),
    publishing.a_closed_publisher_can_connect_again: Memory(CannotBeClosedTwice),
}
