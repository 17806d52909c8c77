"""The promises of every broker's publisher: cases of the suite."""

from dataclasses import replace
from datetime import UTC, datetime

from outboxkit import ids
from outboxkit.brokers import Verdict
from outboxkit.message import Message
from outboxkit.testing.conformance.calling import DELAYS, BrokerUnderTest, Route


async def a_confirmed_message_arrives_as_it_was(broker: BrokerUnderTest) -> None:
    """Every property of a message arrives unchanged."""
    async with Route(broker) as route:
        sent = route.message(
            '{"total":"1.10"}',
            key="order-1",
            headers={"tenant": "acme", "count": 3, "urgent": True, "traceparent": "00-1-2-01"},
            correlation_id="story-1",
            causation_id="cause-1",
            created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            version=2,
        )
        assert await route.send(sent) == [Verdict.CONFIRMED]
        delivery = await route.next()
        received = delivery.message
        assert isinstance(received, Message)
        for name in (
            "id",
            "type",
            "payload",
            "key",
            "headers",
            "correlation_id",
            "causation_id",
            "created_at",
            "version",
        ):
            assert getattr(received, name) == getattr(sent, name), f"{name} was changed on the way"
        assert received.content_type == "application/json"
        assert received.routing_key == sent.routing_key
        assert delivery.delivery_headers.attempt == 1
        await delivery.ack()


async def messages_arrive_in_the_order_of_their_batch(broker: BrokerUnderTest) -> None:
    """One publisher, one queue, one order."""
    async with Route(broker) as route:
        sent = [route.message(str(number)) for number in range(50)]
        assert set(await route.send(*sent)) == {Verdict.CONFIRMED}
        arrived = []
        for _ in sent:
            delivery = await route.next()
            arrived.append(getattr(delivery.message, "id", None))
            await delivery.ack()
        assert arrived == [message.id for message in sent]


async def messages_of_a_key_arrive_in_order_among_others(broker: BrokerUnderTest) -> None:
    """However many keys are in a batch, and however often, each keeps its order, from one batch to the next too."""
    async with Route(broker) as route:
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
    """Messages behind a failed one of their key do not leave, and their receipts say why. Other keys do.

    A publisher may find out too late, with the others on their way. So it publishes twice, and knows the second time.
    """
    async with Route(broker) as route:
        lost = route.message(key="stuck", topic=f"nobody-{ids.new()}")
        assert await route.send(lost) == [Verdict.UNROUTABLE]
        behind = [route.message(str(number), key="stuck") for number in range(3)]
        others = [route.message(key="other"), route.message(), route.message(key="other")]
        receipts = await route.publisher.publish([others[0], lost, *behind, *others[1:]])
        assert [receipt.verdict for receipt in receipts] == [
            *(Verdict.CONFIRMED, Verdict.UNROUTABLE),
            *(Verdict.NOT_SENT,) * 3,
            *(Verdict.CONFIRMED,) * 2,
        ]
        assert all(receipt.reason for receipt in receipts if receipt.verdict is Verdict.NOT_SENT), "a reason is missing"
        assert await route.send(*behind) == [Verdict.CONFIRMED] * 3, "they are free once it is not before them"
        arrived = []
        for _ in (*others, *behind):
            delivery = await route.next()
            arrived.append(getattr(delivery.message, "id", None))
            await delivery.ack()
        assert sorted(map(str, arrived)) == sorted(message.id for message in (*others, *behind))


async def the_same_message_twice_in_a_batch_has_two_receipts(broker: BrokerUnderTest) -> None:
    """One id, three times in a batch: each has a receipt of its own."""
    async with Route(broker) as route:
        first = route.message("1")
        again = Message(id=first.id, type=route.type, payload=b"1")
        lost = Message(id=first.id, type=route.type, payload=b"1", topic=f"nobody-{ids.new()}")
        verdicts = await route.send(first, lost, again, route.message("2"))
        assert verdicts == [Verdict.CONFIRMED, Verdict.UNROUTABLE, Verdict.CONFIRMED, Verdict.CONFIRMED]
        arrived = [getattr((await route.next()).message, "id", None) for _ in range(3)]
        assert arrived.count(first.id) == 2


async def a_large_batch_of_large_messages_arrives_whole(broker: BrokerUnderTest) -> None:
    """Bodies of every size around what a frame and a buffer may hold, in one batch."""
    async with Route(broker) as route:
        sizes = [0, 1, 1000, 131_063, 131_064, 131_065, 131_072, 262_128, 300_000, 1_000_000]
        sent = [route.message("x" * size) for size in sizes]
        assert set(await route.send(*sent)) == {Verdict.CONFIRMED}
        for message in sent:
            delivery = await route.next()
            received = delivery.message
            assert isinstance(received, Message)
            assert (received.id, len(received.payload)) == (message.id, len(message.payload))
            assert received.payload == message.payload
            await delivery.ack()


async def an_unroutable_message_is_no_confirmed_one(broker: BrokerUnderTest) -> None:
    """A message that reaches no queue has its own verdict among others, even if one has the same id."""
    async with Route(broker) as route:
        lost = route.message(topic=f"nobody-{ids.new()}")
        same_id = Message(id=lost.id, type=route.type, payload=b"2")
        verdicts = await route.send(route.message(), lost, same_id, route.message())
        assert verdicts == [Verdict.CONFIRMED, Verdict.UNROUTABLE, Verdict.CONFIRMED, Verdict.CONFIRMED]


async def an_addressed_message_goes_to_its_queue_alone(broker: BrokerUnderTest) -> None:
    """A message for one queue ignores every binding, and its consumer gets it unchanged."""
    async with Route(broker) as route:
        other = broker.subscriber(f"{route.queue}-other", [route.type], DELAYS)
        await other.connect()
        plain = route.message(key="k", topic="a.topic.of.its.own", headers={"tenant": "acme"})
        there = replace(plain, queue=route.queue)
        nowhere = replace(route.message(key="l"), queue=f"nobody-{ids.new()}")
        assert await route.send(there, nowhere) == [Verdict.CONFIRMED, Verdict.UNROUTABLE]
        delivery = await route.next()
        assert delivery.message == plain
        await delivery.ack()
        assert await route.subscriber.receive(wait=False) is None
        assert await other.receive(wait=False) is None
        await other.close()


async def every_queue_gets_its_copy(broker: BrokerUnderTest) -> None:
    """Two queues of one type are two consumers: each gets every message."""
    async with Route(broker) as route:
        other = broker.subscriber(f"{route.queue}-other", [route.type], DELAYS)
        await other.connect()
        sent = route.message()
        await route.send(sent)
        for subscriber in (route.subscriber, other):
            delivery = await route.next(subscriber)
            assert getattr(delivery.message, "id", None) == sent.id
            await delivery.ack()
        await other.close()


async def a_closed_publisher_can_connect_again(broker: BrokerUnderTest) -> None:
    """`connect` after `close` is a new beginning; `close` may be called twice."""
    async with Route(broker) as route:
        await route.publisher.close()
        await route.publisher.close()
        await route.publisher.connect()
        assert await route.send(route.message()) == [Verdict.CONFIRMED]
        await (await route.next()).ack()
