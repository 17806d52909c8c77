"""Cases for a publisher that calls a destination, and routes for tests. A destination answers each message."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, Self

from outboxkit import ids
from outboxkit.brokers import Delivery, Publisher, Receipt, Subscriber, Verdict
from outboxkit.message import Message

DELAYS = (timedelta(milliseconds=100), timedelta(milliseconds=300))
PATIENCE = 10.0
"""Seconds after which a message that has not arrived is taken as lost."""


class BrokerUnderTest(Protocol):
    """A factory of publishers and subscribers for the suite: any number of them, on one broker and one exchange."""

    def publisher(self) -> Publisher:
        """A publisher, not yet connected."""

    def subscriber(self, queue: str, topics: Sequence[str], delays: Sequence[timedelta]) -> Subscriber:
        """A subscriber of this queue, not yet connected."""


class Route:
    """One publisher, and one queue that is bound to a message type of its own."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self.type = f"Conformance-{ids.new()}"
        self.queue = f"conformance-{ids.new()}"
        self.broker = broker
        self.publisher = broker.publisher()
        self.subscriber = self.another_subscriber()

    def another_subscriber(self) -> Subscriber:
        """Another subscriber of the same queue, not yet connected."""
        return self.broker.subscriber(self.queue, [self.type], DELAYS)

    def message(self, text: str = "1", **more: object) -> Message:
        """A new message of this route's type, with this text as its payload."""
        fields = {"id": ids.new(), "type": self.type, "payload": text.encode(), **more}
        return Message(**fields)  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        await self.subscriber.connect()
        await self.publisher.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()
        await self.subscriber.close()

    async def send(self, *messages: Message) -> list[Verdict]:
        """Publish in one batch. Returns the verdicts."""
        return [receipt.verdict for receipt in await self.publisher.publish(messages)]

    async def next(self, subscriber: Subscriber | None = None) -> Delivery:
        """The next delivery. Raises TimeoutError if none comes."""
        delivery = await asyncio.wait_for((subscriber or self.subscriber).receive(), PATIENCE)
        assert delivery is not None, "receive() waits, so it has no reason to return None"
        return delivery


class DestinationUnderTest(Protocol):
    """A factory of publishers to one destination, and the destination itself, as the suite sees it."""

    def publisher(self) -> Publisher:
        """A publisher, not yet connected."""

    def refuse(self, id: str) -> None:  # noqa: A002 - the message's
        """From now on the destination refuses messages of this id."""

    def arrived(self) -> Sequence[Message]:
        """The messages that the destination has accepted so far, in their order."""


class Line:
    """One publisher, connected."""

    def __init__(self, destination: DestinationUnderTest) -> None:
        self.type = f"Conformance-{ids.new()}"
        self.destination = destination
        self.publisher = destination.publisher()

    def message(self, text: str = "1", **more: object) -> Message:
        """A new message with this text as its payload."""
        fields = {"id": ids.new(), "type": self.type, "payload": text.encode(), **more}
        return Message(**fields)  # type: ignore[arg-type]

    def arrived(self) -> list[Message]:
        """The messages of this line that have arrived."""
        return [message for message in self.destination.arrived() if message.type == self.type]

    async def __aenter__(self) -> Self:
        await self.publisher.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()

    async def receipts(self, *messages: Message) -> Sequence[Receipt]:
        """The receipts of one batch."""
        return await self.publisher.publish(messages)

    async def send(self, *messages: Message) -> list[Verdict]:
        """The verdicts alone."""
        return [receipt.verdict for receipt in await self.receipts(*messages)]


async def a_called_destination_gets_the_message_as_it_was(destination: DestinationUnderTest) -> None:
    """Every property of a message arrives unchanged, whatever characters it has."""
    async with Line(destination) as line:
        sent = line.message(
            '{"total":"1.10"}',
            id=f'till 3/"{ids.new()}"',
            key="order 1\\é",
            topic="orders.confirmed",
            headers={"tenant": "acme", "traceparent": "00-1-2-01"},
            correlation_id="story-1",
            causation_id="100%",
            created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            version=2,
        )
        assert await line.send(sent) == [Verdict.CONFIRMED]
        (received,) = line.arrived()
        for name in (
            "id",
            "payload",
            "key",
            "topic",
            "headers",
            "correlation_id",
            "causation_id",
            "created_at",
            "version",
        ):
            assert getattr(received, name) == getattr(sent, name), f"{name} was changed on the way"
        assert received.content_type == "application/json"


async def wherever_a_message_wants_to_go_it_comes_here(destination: DestinationUnderTest) -> None:
    """The destination is configured. No topic, key, type or header of a message leads elsewhere."""
    async with Line(destination) as line:
        wishes = ["//elsewhere.example/", "http://elsewhere.example/", "../../admin", "a b\r\nHost: elsewhere.example"]
        sent = [line.message(topic=wish, key=wish, headers={"Host": wish, "tenant": "acme"}) for wish in wishes]
        assert set(await line.send(*sent)) == {Verdict.CONFIRMED}
        arrived = {message.id: message for message in line.arrived()}
        assert arrived.keys() == {message.id for message in sent}
        assert all(message.headers["tenant"] == "acme" for message in arrived.values())


async def calls_of_a_key_are_made_in_order_among_others(destination: DestinationUnderTest) -> None:
    """Each key keeps its order, with many keys in a batch, and from one batch to the next."""
    async with Line(destination) as line:
        sent = [line.message(str(number), key=f"key-{number % 7}" if number % 3 else None) for number in range(120)]
        for batch in (sent[:50], sent[50:51], sent[51:]):
            assert set(await line.send(*batch)) == {Verdict.CONFIRMED}
        arrived = line.arrived()
        assert sorted(message.id for message in arrived) == sorted(message.id for message in sent)
        for key in {message.key for message in sent if message.key is not None}:
            ids_of_key = [message.id for message in arrived if message.key == key]
            assert ids_of_key == [message.id for message in sent if message.key == key], f"{key} lost its order"


async def a_refused_call_holds_back_the_rest_of_its_key_only(destination: DestinationUnderTest) -> None:
    """Messages behind a refused one of their key do not leave, and their receipts say why. Other keys do."""
    async with Line(destination) as line:
        refused = line.message(key="stuck")
        destination.refuse(refused.id)
        behind = [line.message(str(number), key="stuck") for number in range(3)]
        others = [line.message(key="other"), line.message(), line.message(key="other")]
        receipts = await line.receipts(others[0], refused, *behind, *others[1:])
        assert [receipt.verdict for receipt in receipts] == [
            *(Verdict.CONFIRMED, Verdict.REJECTED),
            *(Verdict.NOT_SENT,) * 3,
            *(Verdict.CONFIRMED,) * 2,
        ]
        assert all(receipt.reason for receipt in receipts[1:5]), "a reason is missing"
        assert await line.send(*behind) == [Verdict.CONFIRMED] * 3, "they are free once it is not before them"
        assert sorted(message.id for message in line.arrived()) == sorted(each.id for each in (*others, *behind))


async def a_refused_call_is_no_confirmed_one(destination: DestinationUnderTest) -> None:
    """A refused message has its own verdict among confirmed ones."""
    async with Line(destination) as line:
        refused = line.message()
        destination.refuse(refused.id)
        receipts = await line.receipts(line.message(), refused, line.message())
        assert [receipt.verdict for receipt in receipts] == [Verdict.CONFIRMED, Verdict.REJECTED, Verdict.CONFIRMED]
        assert receipts[1].reason


async def one_id_twice_in_a_batch_has_two_receipts(destination: DestinationUnderTest) -> None:
    """Each has its receipt. The destination itself detects that it has one of the two already."""
    async with Line(destination) as line:
        first, other = line.message("1"), line.message("3")
        again = line.message("2", id=first.id)
        assert await line.send(first, other, again) == [Verdict.CONFIRMED] * 3
        assert {message.id for message in line.arrived()} == {first.id, other.id}


async def a_large_batch_of_large_calls_arrives_whole(destination: DestinationUnderTest) -> None:
    """Bodies of every size around what a buffer may hold, in one batch."""
    async with Line(destination) as line:
        sizes = [0, 1, 1000, 65_535, 65_536, 65_537, 262_144, 300_000, 1_000_000] + [10] * 200
        sent = [line.message("x" * size) for size in sizes]
        assert set(await line.send(*sent)) == {Verdict.CONFIRMED}
        arrived = {message.id: message.payload for message in line.arrived()}
        assert arrived == {message.id: message.payload for message in sent}


async def publishers_do_not_get_into_each_others_way(destination: DestinationUnderTest) -> None:
    """Two at once, each with its batch."""
    async with Line(destination) as one, Line(destination) as other:
        batches = [[line.message(str(number)) for number in range(20)] for line in (one, other)]
        first, second = await asyncio.gather(one.send(*batches[0]), other.send(*batches[1]))
        assert set(first + second) == {Verdict.CONFIRMED}
        assert {each.id for each in one.arrived()} == {each.id for each in batches[0]}
        assert {each.id for each in other.arrived()} == {each.id for each in batches[1]}


async def a_closed_line_can_be_opened_again(destination: DestinationUnderTest) -> None:
    """`connect` after `close` is a new beginning; both may be called twice."""
    async with Line(destination) as line:
        assert await line.send(line.message()) == [Verdict.CONFIRMED]
        await line.publisher.close()
        await line.publisher.close()
        await line.publisher.connect()
        await line.publisher.connect()
        assert await line.send() == []
        assert await line.send(line.message()) == [Verdict.CONFIRMED]
        assert len(line.arrived()) == 2
