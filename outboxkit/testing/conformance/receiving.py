"""The promises of every broker's subscriber: cases of the suite."""

import asyncio
from datetime import UTC, datetime

from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.message import Message
from outboxkit.testing.conformance.routes import DELAYS, BrokerUnderTest, Route


async def an_empty_queue_says_so(broker: BrokerUnderTest) -> None:
    """`receive(wait=False)` returns the next delivery, and None if the queue is empty."""
    async with Route(broker) as route:
        assert await route.subscriber.receive(wait=False) is None
        await route.send(route.message())
        delivery = await route.subscriber.receive(wait=False)
        assert delivery is not None
        await delivery.ack()
        assert await route.subscriber.receive(wait=False) is None


async def one_that_waits_gets_what_comes_later(broker: BrokerUnderTest) -> None:
    """`receive()` waits for the next message. Meanwhile the subscriber is in no trouble, and hides its password."""
    async with Route(broker) as route:
        await route.subscriber.start_receiving()
        waiting = asyncio.ensure_future(route.next())
        done, _ = await asyncio.wait((waiting,), timeout=0.02)
        assert not done, "there is nothing to receive yet"
        assert route.subscriber.trouble is None
        assert "@" not in route.subscriber.address
        sent = route.message()
        await route.send(sent)
        delivery = await waiting
        assert getattr(delivery.message, "id", None) == sent.id
        await delivery.ack()


async def a_released_message_comes_again_as_the_same_attempt(broker: BrokerUnderTest) -> None:
    """`requeue` puts the message back and counts no attempt."""
    async with Route(broker) as route:
        await route.send(route.message())
        await (await route.next()).requeue()
        again = await route.next()
        assert again.delivery_headers.attempt == 1
        await again.ack()


async def what_is_not_acked_comes_again_after_a_disconnect(broker: BrokerUnderTest) -> None:
    """A consumer that dies with unacked messages has lost none, and acked ones stay acked."""
    async with Route(broker) as route:
        acked, unacked = route.message("1"), route.message("2")
        await route.send(acked, unacked)
        first = await route.next()
        await route.next()
        await first.ack()
        await route.subscriber.close()
        heir = route.another_subscriber()
        await heir.connect()
        await heir.start_receiving()
        again = await route.next(heir)
        assert getattr(again.message, "id", None) == unacked.id
        await again.ack()
        assert await heir.receive(wait=False) is None
        await heir.close()


async def a_retried_message_comes_later_as_the_next_attempt(broker: BrokerUnderTest) -> None:
    """`retry` takes one of the delays, keeps the message as it was, and counts the attempt."""
    async with Route(broker) as route:
        sent = route.message(key="order-1", headers={"tenant": "acme"}, correlation_id="story-1", version=3)
        await route.send(sent)
        first = await route.next()
        assert await first.retry() == DELAYS[0]
        assert await route.subscriber.waiting_retries() == 1
        second = await route.next()
        assert second.delivery_headers.attempt == 2
        assert second.message == first.message
        assert isinstance(second.message, Message)
        assert second.message.version == 3
        assert await second.retry(after=DELAYS[1] * 2) == DELAYS[1], "the delay nearest to what was asked for"
        third = await route.next()
        assert third.delivery_headers.attempt == 3
        await third.ack()
        assert await route.subscriber.waiting_retries() == 0


async def what_is_noted_on_a_message_travels_with_its_retries(broker: BrokerUnderTest) -> None:
    """Delivery headers survive every retry and every renewal, and are not headers of the message."""
    async with Route(broker) as route:
        accepted = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        noted = DeliveryHeaders(handlers=("One", "Two"), accepted_at=accepted)
        await route.send(route.message(headers={**noted.headers(), "tenant": "acme"}))
        first = await route.next()
        assert first.delivery_headers == noted
        assert dict(first.message.headers) == {"tenant": "acme"}, "reserved headers are not the message's"
        await first.retry(handlers=("Two",))
        second = await route.next()
        failed = second.delivery_headers.first_failed_at
        assert failed is not None, "it has failed, so it says when"
        assert second.delivery_headers == DeliveryHeaders(2, failed, ("Two",), accepted)
        await second.requeue_fresh()
        third = await route.next()
        assert third.delivery_headers == second.delivery_headers
        await third.retry()
        fourth = await route.next()
        assert fourth.delivery_headers == DeliveryHeaders(3, failed, ("Two",), accepted), (
            "the first failure, and the handlers still to run, stay"
        )
        assert fourth.message == first.message
        await fourth.ack()


async def the_broker_counts_how_often_a_message_came_back(broker: BrokerUnderTest) -> None:
    """The count is 0 at first and grows with each consumer that goes away with the message. A retry begins anew."""
    async with Route(broker) as route:
        await route.send(route.message())
        counts = []
        for _ in range(3):
            subscriber = route.another_subscriber()
            await route.subscriber.close()
            await subscriber.connect()
            route.subscriber = subscriber
            delivery = await route.next()
            counts.append(delivery.redeliveries)
        assert counts[0] == 0
        assert 0 < counts[1] <= counts[2]
        await delivery.retry()
        again = await route.next()
        assert (again.redeliveries, again.dropped) == (0, False)
        await again.ack()


async def a_renewed_message_comes_again_behind_the_others(broker: BrokerUnderTest) -> None:
    """`requeue_fresh` is a copy at the end of the queue that has never been returned, as the same attempt."""
    async with Route(broker) as route:
        sent = [route.message(text, key="order-1", headers={"tenant": "acme"}) for text in "12"]
        await route.send(*sent)
        await route.next()
        await route.subscriber.close()
        await route.subscriber.connect()
        first = await route.next()
        assert first.redeliveries > 0
        await first.requeue_fresh()
        second = await route.next()
        third = await route.next()
        assert [getattr(each.message, "id", None) for each in (first, second, third)] == [
            sent[0].id,
            sent[1].id,
            sent[0].id,
        ]
        assert third.message == first.message
        assert (third.redeliveries, third.delivery_headers) == (0, first.delivery_headers)
        await second.ack()
        await third.ack()
        assert await route.subscriber.receive(wait=False) is None


async def one_that_ceased_takes_no_more(broker: BrokerUnderTest) -> None:
    """After `stop_receiving` a delivery can still be settled, and everything else is for another consumer."""
    async with Route(broker) as route:
        await route.send(route.message("1"), route.message("2"))
        taken = await route.next()
        await route.subscriber.stop_receiving()
        assert await route.subscriber.receive(wait=False) is None
        heir = route.another_subscriber()
        await heir.connect()
        other = await route.next(heir)
        assert isinstance(other.message, Message)
        assert other.message.payload == b"2"
        await taken.ack()
        await other.ack()
        await route.subscriber.close()
        assert await heir.receive(wait=False) is None
        await heir.close()
