"""`consume --drain` on a real broker: pushed its messages as a live consumer is, and ended when nothing is left."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Outcome, Retry, inbox, inbox_handler
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.brokers.rabbitmq.topology import retry_queue
from outboxkit.consumer import Consumer
from tests.integration.consumer.running_consumer import (
    Ordered,
    behind_proxy,
    consumer_of,
    declare,
    processed,
    publish,
    subscriber_of,
)
from tests.support.delays import DELAYS, WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

ACK_FRAME_BYTES = 21
GIVEN_UP_SECONDS = 60.0


def publish_all(broker: PlainClient, numbers: range) -> None:
    messages = [(b'{"number":%d}' % number, {"message_id": f"m-{number}", "type": "Ordered"}) for number in numbers]
    broker.publish_all(messages, topic="Ordered")


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
async def test_several_drains_leave_nothing_of_what_was_there_and_of_what_comes_meanwhile(
    async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient, batch: bool
):
    late, publishing = iter(range(300, 305)), asyncio.Lock()

    @inbox_handler("Count", batch=batch)
    async def count(session: AsyncSession, event: Ordered) -> None:
        if event.number in (0, 150, 299, 300, 301):  # a message that comes while another one is in flight
            number = next(late, None)
            if number is not None:
                async with publishing:  # one client, which is not for several threads at once
                    await asyncio.to_thread(publish, broker, number, f"m-{number}")
        if event.number == 7:
            raise Retry("later", after=3600)

    await declare(broker, {"Ordered"})
    publish_all(broker, range(300))
    killed = subscriber_of(broker, {"Ordered"}, prefetch=64)  # a consumer that dies with 64 messages in its hands
    await killed.connect()
    await killed.receive()
    await killed.close()
    drains = [consumer_of(async_pg_engine, broker, count).drain(asyncio.Event()) for _ in range(3)]
    done = await asyncio.gather(*drains)
    outcomes = sum((each.outcomes for each in done), start=done[0].outcomes.__class__())
    assert outcomes[Outcome.RETRIED] == 1
    ids = {id_ for _, id_ in processed(pg_engine)}
    assert ids >= {f"m-{number}" for number in range(300)} - {"m-7"}
    assert len(ids) == outcomes[Outcome.PROCESSED] >= 304 - (5 if batch else 0)
    assert sum(each.waiting for each in done) >= 1
    assert broker.depth() == 0
    assert broker.depth(WAITING[-1]) == 1


async def test_a_drain_of_an_ordered_queue_ends_though_another_consumer_is_the_active_one(
    async_pg_engine: AsyncEngine, broker: PlainClient
):
    @inbox_handler("Count")
    async def count(session: AsyncSession, event: Ordered) -> None: ...

    active = subscriber_of(broker, {"Ordered"}, ordered=True, prefetch=64)
    await active.connect()
    publish_all(broker, range(1))
    first = await active.receive()
    assert first is not None
    publish_all(broker, range(1, 200))
    standing_by = consumer_of(async_pg_engine, broker, count, ordered=True)
    draining = asyncio.create_task(standing_by.drain(asyncio.Event()))

    async def consumes() -> bool:
        return getattr(standing_by._subscriber, "_consumed", None) is not None

    await eventually_async(consumes)
    assert not draining.done(), "the queue holds more than is with the active one"
    await first.ack()
    for _ in range(199):
        delivery = await active.receive()
        assert delivery is not None
        await delivery.ack()
    assert (await draining).outcomes == {}
    await active.close()


async def test_a_drain_of_an_ordered_queue_takes_all_of_it_in_order(async_pg_engine: AsyncEngine, broker: PlainClient):
    seen = []

    @inbox_handler("Note")
    async def note(session: AsyncSession, event: Ordered) -> None:
        seen.append(event.number)

    await declare(broker, {"Ordered"}, ordered=True)
    properties = {"type": "Ordered", "headers": {"outboxkit-key": "k"}}
    messages = [(b'{"number":%d}' % number, properties | {"message_id": f"m-{number}"}) for number in range(100)]
    broker.publish_all(messages, topic="Ordered")
    done = await consumer_of(async_pg_engine, broker, note, ordered=True).drain(asyncio.Event())
    assert done.outcomes == {Outcome.PROCESSED: 100}
    assert seen == list(range(100))


async def test_a_stop_while_it_asks_for_the_length_of_the_queue_still_acks_what_runs(
    async_pg_engine: AsyncEngine, broker: PlainClient
):
    stop, began, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    with behind_proxy(broker) as (proxy, through), capture_logs() as said:

        @inbox_handler("Note")
        async def note(session: AsyncSession, event: Ordered) -> None:
            if event.number == 0:
                proxy.hold_client()  # neither the ack nor the question that follows it arrives
            else:
                began.set()
                await may_end.wait()

        async def sent() -> int:
            return proxy.held_bytes

        async def is_stopping() -> bool:
            return any("stopping when" in line["event"] for line in said)

        await declare(broker, {"Ordered"})
        publish_all(broker, range(1))
        draining = asyncio.create_task(consumer_of(async_pg_engine, through, note).drain(stop))
        await eventually_async(sent, lambda count: count > ACK_FRAME_BYTES)
        publish_all(broker, range(1, 2))
        await began.wait()
        stop.set()
        await eventually_async(is_stopping)
        proxy.release()
        may_end.set()
        done = await draining
    assert (done.outcomes, done.waiting) == ({Outcome.PROCESSED: 2}, 0)
    assert broker.depth() == 0


async def test_a_drain_gives_up_a_retry_queue_that_takes_no_copy(async_pg_engine: AsyncEngine, broker: PlainClient):
    @inbox_handler("Fail")
    async def fail(session: AsyncSession, event: Ordered) -> None:
        raise Retry("later", after=3600)

    full = broker.bind(
        queue=retry_queue(broker.queue, DELAYS[-1]), arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    broker.publish(b"", queue=full)
    publish(broker, 1, "m", queue=broker.bind("Ordered", arguments={"x-queue-type": "quorum"}))
    subscriber = RabbitSubscriber(broker.url, broker.queue, exchange=None, topics=["Ordered"], delays=DELAYS)
    patience = timedelta(seconds=0.5)
    consumer = Consumer(async_pg_engine, subscriber, [inbox.handler_of(fail)], queue=broker.queue, patience=patience)
    async with asyncio.timeout(GIVEN_UP_SECONDS):
        with pytest.raises(BrokerUnavailable, match=r"took no copy of a message within 0\.5 s"):
            await consumer.drain(asyncio.Event())
    await subscriber.close()
    assert await eventually_async(lambda: asyncio.to_thread(broker.depth)) == 1


async def test_a_drain_gives_up_a_broker_that_is_lost_again_and_again(
    async_pg_engine: AsyncEngine, broker: PlainClient
):
    async def is_lost() -> bool:
        return subscriber.trouble is not None

    with behind_proxy(broker) as (proxy, through):

        @inbox_handler("Cut")
        async def cut(session: AsyncSession, event: Ordered) -> None:
            proxy.cut()
            await eventually_async(is_lost)
            raise Retry("later", after=3600)

        await declare(broker, {"Ordered"})
        publish_all(broker, range(1))
        subscriber, patience = subscriber_of(through, {"Ordered"}), timedelta(seconds=0.2)
        consumer = Consumer(async_pg_engine, subscriber, [inbox.handler_of(cut)], queue=broker.queue, patience=patience)
        async with asyncio.timeout(GIVEN_UP_SECONDS):
            with pytest.raises(BrokerUnavailable):
                await consumer.drain(asyncio.Event())
        await subscriber.close()
    assert consumer.outcomes == {}
