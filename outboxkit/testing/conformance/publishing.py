"""The promises of every publisher, to a broker or to a destination: cases of the suite."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

from outboxkit import ids
from outboxkit.brokers import Verdict
from outboxkit.message import FIELDS, Message
from outboxkit.testing.conformance.routes import BrokerUnderTest, DestinationUnderTest, Route, line_to

ARRIVING = ("routing_key", *(name for name in FIELDS if name not in ("topic", "queue")))
"""The properties that a message has again at its consumer; topic and queue have led it there."""
Target = BrokerUnderTest | DestinationUnderTest


async def a_confirmed_message_arrives_as_it_was(target: Target) -> None:
    """Every property of a message arrives unchanged, whatever characters it has."""
    async with line_to(target) as line:
        sent = line.message(
            '{"total":"1.10"}',
            id=f'till 3/"{ids.new()}"',
            key="order 1\\é",
            headers={"tenant": "acme", "traceparent": "00-1-2-01"},
            correlation_id="story-1",
            causation_id="100%",
            created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            version=2,
        )
        assert await line.send(sent) == [Verdict.CONFIRMED]
        (received,) = await line.arrived(1)
        for name in ARRIVING:
            assert getattr(received, name) == getattr(sent, name), f"{name} was changed on the way"


async def messages_of_a_key_arrive_in_order_among_others(target: Target) -> None:
    """Each key keeps its order, with many keys in a batch, and from one batch to the next."""
    async with line_to(target) as line:
        sent = [line.message(str(number), key=f"key-{number % 7}" if number % 3 else None) for number in range(120)]
        for batch in (sent[:50], sent[50:51], sent[51:]):
            assert set(await line.send(*batch)) == {Verdict.CONFIRMED}
        arrived = await line.arrived(len(sent))
        assert sorted(message.id for message in arrived) == sorted(message.id for message in sent)
        for key in {message.key for message in sent if message.key is not None}:
            ids_of_key = [message.id for message in arrived if message.key == key]
            assert ids_of_key == [message.id for message in sent if message.key == key], f"{key} lost its order"


async def a_failed_message_holds_back_the_rest_of_its_key_only(target: Target) -> None:
    """Messages behind a failed one of their key do not leave, and their receipts say why. Other keys do.

    A publisher may find out too late, with the others on their way. So it publishes twice, and knows the second time.
    """
    async with line_to(target) as line:
        failing = line.failing(key="stuck")
        assert await line.send(failing) == [line.failure]
        behind = [line.message(str(number), key="stuck") for number in range(3)]
        others = [line.message(key="other"), line.message(), line.message(key="other")]
        receipts = await line.publisher.publish([others[0], failing, *behind, *others[1:]])
        assert [receipt.verdict for receipt in receipts] == [
            *(Verdict.CONFIRMED, line.failure),
            *(Verdict.NOT_SENT,) * 3,
            *(Verdict.CONFIRMED,) * 2,
        ]
        assert all(receipt.reason for receipt in receipts if receipt.verdict is Verdict.NOT_SENT), "a reason is missing"
        assert await line.send(*behind) == [Verdict.CONFIRMED] * 3, "they are free once it is not before them"
        arrived = await line.arrived(6)
        assert sorted(message.id for message in arrived) == sorted(message.id for message in (*others, *behind))


async def one_id_twice_in_a_batch_has_two_receipts(target: Target) -> None:
    """Each has its receipt. A destination may detect that it has one of the two already."""
    async with line_to(target) as line:
        first, other = line.message("1"), line.message("3")
        again = line.message("2", id=first.id)
        assert await line.send(first, other, again) == [Verdict.CONFIRMED] * 3
        arrived = await line.arrived(3 if isinstance(line, Route) else 2)
        assert {message.id for message in arrived} == {first.id, other.id}


async def a_large_batch_of_large_messages_arrives_whole(target: Target) -> None:
    """Bodies of every size around what a frame and a buffer may hold, in one batch."""
    async with line_to(target) as line:
        sizes = [0, 1, 1000, 65_535, 65_536, 65_537, 131_063, 131_064, 131_065, 131_072, 262_128, 262_144, 1_000_000]
        sent = [line.message("x" * size) for size in [*sizes, *[10] * 200]]
        assert set(await line.send(*sent)) == {Verdict.CONFIRMED}
        arrived = {message.id: message.payload for message in await line.arrived(len(sent))}
        assert arrived == {message.id: message.payload for message in sent}


async def publishers_do_not_get_into_each_others_way(target: Target) -> None:
    """Two at once, each with its batch."""
    async with line_to(target) as one, line_to(target) as other:
        batches = [[line.message(str(number)) for number in range(20)] for line in (one, other)]
        first, second = await asyncio.gather(one.send(*batches[0]), other.send(*batches[1]))
        assert set(first + second) == {Verdict.CONFIRMED}
        for line, batch in ((one, batches[0]), (other, batches[1])):
            assert {message.id for message in await line.arrived(20)} == {message.id for message in batch}


async def a_connected_publisher_is_in_no_trouble(target: Target) -> None:
    """It names its place without a password, and what the log calls it."""
    async with line_to(target) as line:
        publisher = line.publisher
        assert publisher.trouble is None
        assert publisher.address
        assert "@" not in publisher.address
        assert publisher.system
        assert publisher.peer in ("broker", "destination", "database")
        assert publisher.batch_limit is None or publisher.batch_limit > 0


async def a_closed_publisher_can_connect_again(target: Target) -> None:
    """`connect` after `close` is a new beginning; `close` may be called twice."""
    async with line_to(target) as line:
        await line.publisher.close()
        await line.publisher.close()
        await line.publisher.connect()
        assert await line.send() == []
        assert await line.send(line.message()) == [Verdict.CONFIRMED]
        await line.arrived(1)


async def an_unroutable_message_is_no_confirmed_one(broker: BrokerUnderTest) -> None:
    """A message that reaches no queue has its own verdict among others, and its reason names the routing key.

    So it is if another message of the batch has the same id, before it or behind it.
    """
    async with Route(broker) as route:
        lost = route.failing()
        same_id = Message(id=lost.id, type=route.type, payload=b"2")
        for first, second in ((lost, same_id), (same_id, lost)):
            sent = [route.message(), first, second, route.message()]
            receipts = await route.publisher.publish(sent)
            assert [receipt.verdict for receipt in receipts] == [
                Verdict.UNROUTABLE if message is lost else Verdict.CONFIRMED for message in sent
            ]
            assert lost.routing_key in str(receipts[sent.index(lost)].reason)
            arrived = [message.id for message in await route.arrived(3)]
            assert sorted(arrived) == sorted(message.id for message in sent if message is not lost)


async def an_addressed_message_goes_to_its_queue_alone(broker: BrokerUnderTest) -> None:
    """A message for one queue ignores every binding, and its consumer gets it unchanged."""
    async with Route(broker) as route:
        other = route.another_subscriber(f"{route.queue}-other")
        await other.connect()
        plain = route.message(key="k", topic="a.topic.of.its.own", headers={"count": 3, "urgent": True})
        nowhere = replace(route.message(key="l"), queue=f"nobody-{ids.new()}")
        assert await route.send(replace(plain, queue=route.queue), nowhere) == [Verdict.CONFIRMED, Verdict.UNROUTABLE]
        assert await route.arrived(1) == [plain]
        assert await route.subscriber.receive(wait=False) is None
        assert await other.receive(wait=False) is None
        await other.close()


async def every_queue_gets_its_copy(broker: BrokerUnderTest) -> None:
    """Two queues of one type are two consumers: each gets every message."""
    async with Route(broker) as route:
        other = route.another_subscriber(f"{route.queue}-other")
        await other.connect()
        sent = route.message()
        await route.send(sent)
        for subscriber in (route.subscriber, other):
            delivery = await route.next(subscriber)
            assert getattr(delivery.message, "id", None) == sent.id
            await delivery.ack()
        await other.close()


async def wherever_a_message_wants_to_go_it_comes_here(destination: DestinationUnderTest) -> None:
    """The destination is configured. No topic, key, type or header of a message leads elsewhere."""
    async with line_to(destination) as line:
        wishes = ["//elsewhere.example/", "http://elsewhere.example/", "../../admin", "a b\r\nHost: elsewhere.example"]
        sent = [line.message(topic=wish, key=wish, headers={"Host": wish, "tenant": "acme"}) for wish in wishes]
        assert set(await line.send(*sent)) == {Verdict.CONFIRMED}
        arrived = {message.id: message for message in await line.arrived(len(wishes))}
        assert arrived.keys() == {message.id for message in sent}
        for message in sent:
            assert (arrived[message.id].topic, arrived[message.id].headers["tenant"]) == (message.topic, "acme")
