"""Copies for a retry queue that is full: they wait for room, whichever ids they have."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.copies import OLD_CONNECTION_SECONDS, RetryPublisher
from outboxkit.brokers.rabbitmq.incoming import RawDelivery
from outboxkit.brokers.rabbitmq.topology import CopyRoute
from outboxkit.codec.headers import DeliveryHeaders
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

COUNT = 20


@pytest.fixture
async def copies(broker: PlainClient) -> AsyncIterator[RetryPublisher]:
    made = RetryPublisher(broker.url, name="test", timeout=30)
    yield made
    await made.close()


def arrived(id_: str, attempt: int) -> RawDelivery:
    written = commands.Basic.Properties(message_id=id_, message_type="T").marshal()
    flags, rest = int.from_bytes(written[:2]), written[2:]
    body = str(attempt).encode()
    return RawDelivery(attempt, False, "billing", "orders", flags, rest, decode.read_properties(flags, rest), body)


@pytest.mark.parametrize("name", [lambda _: "same", str], ids=["one id", "an id each"])
async def test_copies_wait_for_room_and_then_are_there_once_each(
    copies: RetryPublisher, broker: PlainClient, name: Callable[[int], str]
):
    arguments = {"x-max-length": COUNT, "x-overflow": "reject-publish"}
    step, stopped = broker.bind(arguments=arguments), asyncio.Event()

    def put(id_: str, number: int) -> "asyncio.Task[None]":
        put_it = copies.put(
            arrived(id_, number),
            CopyRoute("", step),
            delivery_headers=DeliveryHeaders(),
            topic="orders",
            stopped=stopped,
        )
        return asyncio.create_task(put_it)

    await asyncio.gather(*(put(f"filler {number}", number) for number in range(COUNT)))
    assert copies._channel is not None
    copies._opened_at -= 2 * OLD_CONNECTION_SECONDS  # so that the first nack replaces the connection
    with capture_logs() as logs:
        waiting = [put(name(number), number) for number in range(COUNT)]
        await eventually_async(lambda: asyncio.sleep(0, bool(logs)))
        assert [each.exception() for each in waiting if each.done()] == []
        assert len(await asyncio.to_thread(broker.take_all, step)) == COUNT
        await asyncio.gather(*waiting)
    copied = await asyncio.to_thread(broker.take_all, step)
    assert sorted(int(each.body) for each in copied) == list(range(COUNT))
    assert {each["event"] for each in logs} == {"a queue takes no copies, waiting", "the queue takes copies again"}
