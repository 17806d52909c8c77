"""The suite that every broker must pass: plain coroutines, to be run by whatever test runner there is.

    @pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
    async def test_conformance(case):
        await case(MyBrokerUnderTest())

Each case asserts one promise of `outboxkit.brokers`, on queues of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, Self

from outboxkit import ids
from outboxkit.brokers import Delivery, Publisher, Subscriber, Verdict
from outboxkit.message import Message

LADDER = (timedelta(milliseconds=100), timedelta(milliseconds=300))
PATIENCE = 10.0
"""Seconds after which what should have arrived is taken as lost."""


class BrokerUnderTest(Protocol):
    """How the suite makes its publishers and subscribers: any number of them, on one broker and one exchange."""

    def publisher(self) -> Publisher:
        """A publisher, not yet connected."""

    def subscriber(self, queue: str, topics: Sequence[str], ladder: Sequence[timedelta]) -> Subscriber:
        """A subscriber of this queue, not yet connected."""


Case = Callable[[BrokerUnderTest], Awaitable[None]]


class _Route:
    """One publisher, and one queue that is bound to a message type of its own."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self.type = f"Conformance-{ids.new()}"
        self.queue = f"conformance-{ids.new()}"
        self.broker = broker
        self.publisher = broker.publisher()
        self.subscriber = self.another_subscriber()

    def another_subscriber(self) -> Subscriber:
        return self.broker.subscriber(self.queue, [self.type], LADDER)

    def message(self, text: str = "1", **more: object) -> Message:
        given = {"id": ids.new(), "type": self.type, "payload": text.encode(), **more}
        return Message(**given)  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        await self.subscriber.connect()
        await self.publisher.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()
        await self.subscriber.close()

    async def send(self, *messages: Message) -> list[Verdict]:
        return [receipt.verdict for receipt in await self.publisher.publish(messages)]

    async def next(self, subscriber: Subscriber | None = None) -> Delivery:
        delivery = await asyncio.wait_for((subscriber or self.subscriber).receive(), PATIENCE)
        assert delivery is not None, "receive() waits, so it has no reason to return None"
        return delivery


async def a_confirmed_message_arrives_as_it_was(broker: BrokerUnderTest) -> None:
    """Every property of a message survives the way."""
    async with _Route(broker) as route:
        sent = route.message(
            '{"total":"1.10"}',
            key="order-1",
            headers={"tenant": "acme", "count": 3, "urgent": True, "traceparent": "00-1-2-01"},
            correlation_id="story-1",
            causation_id="cause-1",
            created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        )
        assert await route.send(sent) == [Verdict.CONFIRMED]
        delivery = await route.next()
        found = delivery.message
        assert isinstance(found, Message)
        for name in ("id", "type", "payload", "key", "headers", "correlation_id", "causation_id", "created_at"):
            assert getattr(found, name) == getattr(sent, name), f"{name} was changed on the way"
        assert found.content_type == "application/json"
        assert found.routing_key == sent.routing_key
        assert delivery.marks.attempt == 1
        await delivery.ack()


async def messages_arrive_in_the_order_of_their_batch(broker: BrokerUnderTest) -> None:
    """One publisher, one queue, one order."""
    async with _Route(broker) as route:
        sent = [route.message(str(number)) for number in range(50)]
        assert set(await route.send(*sent)) == {Verdict.CONFIRMED}
        arrived = []
        for _ in sent:
            delivery = await route.next()
            arrived.append(getattr(delivery.message, "id", None))
            await delivery.ack()
        assert arrived == [message.id for message in sent]


async def an_unroutable_message_is_no_confirmed_one(broker: BrokerUnderTest) -> None:
    """A message that reaches no queue is told apart from its neighbours, whatever their ids."""
    async with _Route(broker) as route:
        lost = route.message(topic=f"nobody-{ids.new()}")
        same_id = Message(id=lost.id, type=route.type, payload=b"2")
        verdicts = await route.send(route.message(), lost, same_id, route.message())
        assert verdicts == [Verdict.CONFIRMED, Verdict.UNROUTABLE, Verdict.CONFIRMED, Verdict.CONFIRMED]


async def messages_of_a_key_arrive_in_order_among_others(broker: BrokerUnderTest) -> None:
    """However many keys are in a batch, and however often, each keeps its order, from one batch to the next too."""
    async with _Route(broker) as route:
        sent = [route.message(str(number), key=f"key-{number % 7}" if number % 3 else None) for number in range(120)]
        for batch in (sent[:50], sent[50:51], sent[51:]):
            assert set(await route.send(*batch)) == {Verdict.CONFIRMED}
        arrived: list[Message] = []
        for _ in sent:
            delivery = await route.next()
            assert isinstance(delivery.message, Message)
            arrived.append(delivery.message)
            await delivery.ack()
        for key in {message.key for message in sent}:
            ids_of_key = [message.id for message in arrived if message.key == key]
            assert ids_of_key == [message.id for message in sent if message.key == key], f"{key} lost its order"


async def a_failed_message_holds_back_the_rest_of_its_key_only(broker: BrokerUnderTest) -> None:
    """What is behind a failed message of its key does not leave, and says why; its neighbours do.

    A publisher may find out too late, with the others on their way: it is asked twice, and knows the second time.
    """
    async with _Route(broker) as route:
        lost = route.message(key="stuck", topic=f"nobody-{ids.new()}")
        assert await route.send(lost) == [Verdict.UNROUTABLE]
        behind = [route.message(str(number), key="stuck") for number in range(3)]
        others = [route.message(key="other"), route.message(), route.message(key="other")]
        receipts = await route.publisher.publish([others[0], lost, *behind, *others[1:]])
        assert [receipt.verdict for receipt in receipts] == [
            *(Verdict.CONFIRMED, Verdict.UNROUTABLE),
            *(Verdict.HELD,) * 3,
            *(Verdict.CONFIRMED,) * 2,
        ]
        assert all(receipt.reason for receipt in receipts if receipt.verdict is Verdict.HELD), "a reason is missing"
        assert await route.send(*behind) == [Verdict.CONFIRMED] * 3, "they are free once it is not before them"
        arrived = []
        for _ in (*others, *behind):
            delivery = await route.next()
            arrived.append(getattr(delivery.message, "id", None))
            await delivery.ack()
        assert sorted(map(str, arrived)) == sorted(message.id for message in (*others, *behind))


async def the_same_message_twice_in_a_batch_has_two_receipts(broker: BrokerUnderTest) -> None:
    """One id, three times in a batch: each is answered for itself."""
    async with _Route(broker) as route:
        first = route.message("1")
        again = Message(id=first.id, type=route.type, payload=b"1")
        lost = Message(id=first.id, type=route.type, payload=b"1", topic=f"nobody-{ids.new()}")
        verdicts = await route.send(first, lost, again, route.message("2"))
        assert verdicts == [Verdict.CONFIRMED, Verdict.UNROUTABLE, Verdict.CONFIRMED, Verdict.CONFIRMED]
        arrived = [getattr((await route.next()).message, "id", None) for _ in range(3)]
        assert arrived.count(first.id) == 2


async def a_large_batch_of_large_messages_arrives_whole(broker: BrokerUnderTest) -> None:
    """Bodies of every size around what a frame and a buffer may hold, in one batch."""
    async with _Route(broker) as route:
        sizes = [0, 1, 1000, 131_063, 131_064, 131_065, 131_072, 262_128, 300_000, 1_000_000]
        sent = [route.message("x" * size) for size in sizes]
        assert set(await route.send(*sent)) == {Verdict.CONFIRMED}
        for message in sent:
            delivery = await route.next()
            found = delivery.message
            assert isinstance(found, Message)
            assert (found.id, len(found.payload)) == (message.id, len(message.payload))
            assert found.payload == message.payload
            await delivery.ack()


async def every_queue_gets_its_copy(broker: BrokerUnderTest) -> None:
    """Two queues of one type are two consumers: each gets every message."""
    async with _Route(broker) as route:
        other = broker.subscriber(f"{route.queue}-other", [route.type], LADDER)
        await other.connect()
        sent = route.message()
        await route.send(sent)
        for subscriber in (route.subscriber, other):
            delivery = await route.next(subscriber)
            assert getattr(delivery.message, "id", None) == sent.id
            await delivery.ack()
        await other.close()


async def an_empty_queue_says_so(broker: BrokerUnderTest) -> None:
    """`receive(wait=False)` gives what is there, and None once nothing is."""
    async with _Route(broker) as route:
        assert await route.subscriber.receive(wait=False) is None
        await route.send(route.message())
        delivery = await route.subscriber.receive(wait=False)
        assert delivery is not None
        await delivery.ack()
        assert await route.subscriber.receive(wait=False) is None


async def a_released_message_comes_again_as_the_same_attempt(broker: BrokerUnderTest) -> None:
    """`release` gives back and counts nothing."""
    async with _Route(broker) as route:
        await route.send(route.message())
        await (await route.next()).release()
        again = await route.next()
        assert again.marks.attempt == 1
        await again.ack()


async def what_is_not_acked_comes_again_after_a_disconnect(broker: BrokerUnderTest) -> None:
    """A consumer that dies with messages in hand has lost none; what it acked stays acked."""
    async with _Route(broker) as route:
        acked, kept = route.message("1"), route.message("2")
        await route.send(acked, kept)
        first = await route.next()
        await route.next()
        await first.ack()
        await route.subscriber.close()
        heir = route.another_subscriber()
        await heir.connect()
        again = await route.next(heir)
        assert getattr(again.message, "id", None) == kept.id
        await again.ack()
        assert await heir.receive(wait=False) is None
        await heir.close()


async def a_retried_message_comes_later_as_the_next_attempt(broker: BrokerUnderTest) -> None:
    """`retry` takes a step of the ladder, keeps the message as it was, and counts the attempt."""
    async with _Route(broker) as route:
        sent = route.message(key="order-1", headers={"tenant": "acme"}, correlation_id="story-1")
        await route.send(sent)
        first = await route.next()
        assert await first.retry() == LADDER[0]
        assert await route.subscriber.postponed() == 1
        second = await route.next()
        assert second.marks.attempt == 2
        assert second.message == first.message
        assert await second.retry(after=LADDER[1] * 2) == LADDER[1], "the step nearest to what was asked for"
        third = await route.next()
        assert third.marks.attempt == 3
        await third.ack()
        assert await route.subscriber.postponed() == 0


async def a_closed_publisher_can_connect_again(broker: BrokerUnderTest) -> None:
    """`connect` after `close` is a new beginning; `close` may be called twice."""
    async with _Route(broker) as route:
        await route.publisher.close()
        await route.publisher.close()
        await route.publisher.connect()
        assert await route.send(route.message()) == [Verdict.CONFIRMED]
        await (await route.next()).ack()


CASES: tuple[Case, ...] = (
    a_confirmed_message_arrives_as_it_was,
    messages_arrive_in_the_order_of_their_batch,
    messages_of_a_key_arrive_in_order_among_others,
    a_failed_message_holds_back_the_rest_of_its_key_only,
    the_same_message_twice_in_a_batch_has_two_receipts,
    a_large_batch_of_large_messages_arrives_whole,
    an_unroutable_message_is_no_confirmed_one,
    every_queue_gets_its_copy,
    an_empty_queue_says_so,
    a_released_message_comes_again_as_the_same_attempt,
    what_is_not_acked_comes_again_after_a_disconnect,
    a_retried_message_comes_later_as_the_next_attempt,
    a_closed_publisher_can_connect_again,
)
