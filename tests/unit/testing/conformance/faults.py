"""Brokers and destinations with a fault each, and the case of the suite that is there to find it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Subscriber, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryDelivery, MemoryPublisher, MemorySubscriber
from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.message import Message
from outboxkit.testing.conformance import publishing, receiving

REFUSED = Receipt(Verdict.REJECTED, "refused")


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


class Called:
    """A destination inside the process, with a publisher that may be faulty."""

    def __init__(self, publisher: "Callable[[Called], Publisher] | None" = None) -> None:
        self.make_publisher = publisher or Calls
        self.refused: set[str] = set()
        self.taken: list[Message] = []

    def publisher(self) -> Publisher:
        return self.make_publisher(self)

    def refuse(self, id: str) -> None:  # noqa: A002
        self.refused.add(id)

    def arrived(self) -> Sequence[Message]:
        return self.taken

    def take(self, message: Message) -> Receipt:
        if message.id in self.refused:
            return REFUSED
        self.taken.append(message)
        return CONFIRMED


class Calls(Publisher):
    def __init__(self, destination: Called) -> None:
        self.destination = destination

    async def connect(self) -> None: ...

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        failed: set[str | None] = set()
        receipts = []
        for message in batch:
            held = message.key is not None and message.key in failed
            receipt = Receipt(Verdict.NOT_SENT, "held") if held else self.destination.take(message)
            failed |= {message.key} if receipt is REFUSED else set()
            receipts.append(receipt)
        return receipts

    async def close(self) -> None: ...


# Faults of a publisher to a broker or to a destination.


def changing(change: Callable[[Sequence[Message]], Sequence[Message]]) -> Callable[[type[Any]], type[Any]]:
    """A publisher that publishes other batches than it is given."""

    def of(publisher: type[Any]) -> type[Any]:
        class Changing(publisher):  # type: ignore[misc]
            async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
                receipts: Sequence[Receipt] = await super().publish(change(batch))
                return receipts

        return Changing

    return of


forgets_the_key = changing(lambda batch: [replace(message, key=None) for message in batch])
mixes_up_the_order = changing(lambda batch: batch[::-1])
answers_once_per_id = changing(lambda batch: list({message.id: message for message in batch}.values()))
cuts_bodies = changing(lambda batch: [replace(message, payload=message.payload[:131_064]) for message in batch])
knows_no_address = changing(lambda batch: [replace(message, queue=None) for message in batch])


def shares_one_batch(publisher: type[Any]) -> type[Any]:
    batches: list[Sequence[Message]] = []
    return changing(lambda batch: [batches.append(batch), batches[0]][1])(publisher)  # type: ignore[func-returns-value]


def holds_nothing_back(publisher: type[Any]) -> type[Any]:
    class HoldsNothingBack(publisher):  # type: ignore[misc]
        async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
            return [receipt for message in batch for receipt in await super(HoldsNothingBack, self).publish([message])]

    return HoldsNothingBack


def cannot_be_closed_twice(publisher: type[Any]) -> type[Any]:
    class CannotBeClosedTwice(publisher):  # type: ignore[misc]
        closed = False

        async def close(self) -> None:
            assert not self.closed
            self.closed = True

    return CannotBeClosedTwice


def shows_its_password(publisher: type[Any]) -> type[Any]:
    return type("ShowsItsPassword", (publisher,), {"address": "amqp://shop:secret@broker/"})


SHARED: dict[Any, Callable[[type[Any]], type[Any]]] = {
    publishing.a_confirmed_message_arrives_as_it_was: forgets_the_key,
    publishing.messages_of_a_key_arrive_in_order_among_others: mixes_up_the_order,
    publishing.a_failed_message_holds_back_the_rest_of_its_key_only: holds_nothing_back,
    publishing.one_id_twice_in_a_batch_has_two_receipts: answers_once_per_id,
    publishing.a_large_batch_of_large_messages_arrives_whole: cuts_bodies,
    publishing.publishers_do_not_get_into_each_others_way: shares_one_batch,
    publishing.a_connected_publisher_is_in_no_trouble: shows_its_password,
    publishing.a_closed_publisher_can_connect_again: cannot_be_closed_twice,
}


class AnswersById(MemoryPublisher):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        by_id = dict(zip((message.id for message in batch), await super().publish(batch), strict=True))
        return [by_id[message.id] for message in batch]


class GoesWhereItIsTold(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        here = [message for message in batch if "//" not in (message.topic or "")]
        await super().publish(here)
        return [CONFIRMED] * len(batch)


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


class IsNotWoken(MemorySubscriber):
    async def receive(self, *, wait: bool = True) -> MemoryDelivery | None:
        if wait and not self.queue.ready:
            await asyncio.Event().wait()
        return await super().receive(wait=wait)


FAULTS = {case: Memory(fault(MemoryPublisher)) for case, fault in SHARED.items()} | {
    publishing.an_unroutable_message_is_no_confirmed_one: Memory(AnswersById),
    publishing.an_addressed_message_goes_to_its_queue_alone: Memory(knows_no_address(MemoryPublisher)),
    publishing.every_queue_gets_its_copy: Memory(subscriber=SharesOneQueue),
    receiving.an_empty_queue_says_so: Memory(subscriber=NeverLooks),
    receiving.one_that_waits_gets_what_comes_later: Memory(subscriber=IsNotWoken),
    receiving.a_released_message_comes_again_as_the_same_attempt: Memory(subscriber=CountsAReleaseAsAnAttempt),
    receiving.what_is_not_acked_comes_again_after_a_disconnect: Memory(subscriber=LosesWhatIsNotAcked),
    receiving.a_retried_message_comes_later_as_the_next_attempt: Memory(subscriber=NeverClimbs),
    receiving.what_is_noted_on_a_message_travels_with_its_retries: Memory(subscriber=ForgetsHandlers),
    receiving.the_broker_counts_how_often_a_message_came_back: Memory(subscriber=DoesNotCount),
    receiving.a_renewed_message_comes_again_behind_the_others: Memory(subscriber=RenewsByRelease),
    receiving.one_that_ceased_takes_no_more: Memory(subscriber=NeverCeases),
}
CALL_FAULTS = {case: Called(fault(Calls)) for case, fault in SHARED.items()} | {
    publishing.wherever_a_message_wants_to_go_it_comes_here: Called(GoesWhereItIsTold),
}
