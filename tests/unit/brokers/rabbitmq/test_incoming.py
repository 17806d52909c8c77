"""A channel on which deliveries arrive, without a broker: who gets what, and what is written when."""

import asyncio
from typing import Any

import pytest
from pamqp import commands, frame

from outboxkit import BrokerUnavailable
from outboxkit.brokers.rabbitmq.incoming import MAX_UNACKED_BYTES, DeliveryChannel
from outboxkit.brokers.rabbitmq.taps import RawDelivery
from tests.unit.brokers.rabbitmq.test_delivery_parser import CHANNEL, asked, pushed
from tests.unit.brokers.rabbitmq.written import Written

EMPTY = frame.marshal(commands.Basic.GetEmpty(), CHANNEL)


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def channel(written: Written) -> DeliveryChannel:
    made = DeliveryChannel(timeout=5, max_unacked_bytes=MAX_UNACKED_BYTES)
    made.writes_to(written)  # type: ignore[arg-type]
    made.listen(channel=CHANNEL)
    return made


def arrive(channel: DeliveryChannel, *tags: int, how: Any = pushed) -> None:
    for tag in tags:
        assert channel.parser.feed(b"".join(how(tag, b"body"))) == b""


async def test_what_is_pushed_is_received_in_its_order(channel: DeliveryChannel):
    waiting = [asyncio.create_task(channel.next()) for _ in range(3)]
    await asyncio.sleep(0)
    arrive(channel, 1, 2)
    arrive(channel, 3)
    assert sorted([(await each).tag for each in waiting]) == [1, 2, 3]
    assert channel.next_nowait() is None


async def test_the_acks_of_one_moment_leave_as_one_frame(channel: DeliveryChannel, written: Written):
    arrive(channel, *range(1, 101))
    for tag in range(1, 100):
        channel.ack(tag)
    assert written.take() == []
    await asyncio.sleep(0)
    (ack,) = written.take()
    assert (ack.delivery_tag, ack.multiple) == (99, True)
    channel.ack(100)
    await asyncio.sleep(0)
    assert len(written.take()) == 1


async def test_what_is_given_back_leaves_at_once(channel: DeliveryChannel, written: Written):
    arrive(channel, 1, 2)
    channel.ack(1)
    channel.nack(2)
    assert [type(each) for each in written.take()] == [commands.Basic.Nack]
    await asyncio.sleep(0)
    assert [type(each) for each in written.take()] == [commands.Basic.Ack]


async def test_nothing_is_written_on_a_lost_channel(channel: DeliveryChannel, written: Written):
    arrive(channel, 1, 2, 3)
    channel.ack(1)
    channel.lose("first")
    channel.lose("second")
    await asyncio.sleep(0)
    for settle in (channel.ack, channel.nack):
        with pytest.raises(BrokerUnavailable, match="first"):
            settle(2)
    with pytest.raises(BrokerUnavailable, match="first"):
        await channel.next()
    with pytest.raises(BrokerUnavailable, match="first"):
        await channel.get("billing")
    assert written.bytes == b""


async def test_a_connection_that_was_closed_is_noticed_at_the_next_write(channel: DeliveryChannel, written: Written):
    arrive(channel, 1)
    written.closing = True
    with pytest.raises(BrokerUnavailable):
        channel.nack(1)
    assert channel.lost is not None


async def test_an_end_of_the_channel_is_known_before_the_client_hears_of_it(channel: DeliveryChannel):
    waiting = asyncio.create_task(channel.next())
    await asyncio.sleep(0)
    closing = frame.marshal(commands.Channel.Close(406, "PRECONDITION_FAILED", 60, 80), CHANNEL)
    assert channel.parser.feed(closing) == closing
    with pytest.raises(BrokerUnavailable, match="PRECONDITION_FAILED"):
        await waiting


async def test_a_queue_is_asked_and_answers(channel: DeliveryChannel, written: Written):
    asking = [asyncio.create_task(channel.get(queue)) for queue in ("billing", "billing.dead", "billing")]
    await asyncio.sleep(0)
    assert [each.queue for each in written.take()] == ["billing", "billing.dead", "billing"]
    channel.parser.feed(b"".join(asked(1, b"one")) + b"".join(asked(2, b"two")) + EMPTY)
    found = [await each for each in asking]
    assert [each and (each.consumer, each.body) for each in found] == [
        ("billing", b"one"),
        ("billing.dead", b"two"),
        None,
    ]


async def test_what_comes_for_one_that_no_longer_waits_is_for_the_next(channel: DeliveryChannel, written: Written):
    leaving, staying = (asyncio.create_task(channel.get(queue)) for queue in ("billing.dead", "billing"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    channel.parser.feed(b"".join(asked(1, b"one")) + EMPTY)
    assert await staying is None
    found = await channel.get("billing")
    assert found is not None
    assert (found.tag, found.consumer) == (1, "billing.dead")


async def test_no_answer_in_time_is_a_lost_channel(written: Written):
    silent = DeliveryChannel(timeout=0, max_unacked_bytes=MAX_UNACKED_BYTES)
    silent.writes_to(written)  # type: ignore[arg-type]
    silent.listen(channel=CHANNEL)
    with pytest.raises(BrokerUnavailable, match="did not answer when 'billing' was read"):
        await silent.get("billing")
    with pytest.raises(BrokerUnavailable):
        silent.next_nowait()


async def test_who_waits_for_an_answer_hears_of_the_end(channel: DeliveryChannel):
    asking = asyncio.create_task(channel.get("billing"))
    await asyncio.sleep(0)
    channel.lose("gone")
    with pytest.raises(BrokerUnavailable, match="gone"):
        await asking


class Channel:
    """As much of the client's channel as is used; deliveries arrive until it has cancelled."""

    def __init__(self, channel: DeliveryChannel) -> None:
        self.channel = channel
        self.cancelled: list[str] = []

    async def basic_cancel(self, tag: str, timeout: float) -> None:
        assert timeout
        self.cancelled.append(tag)
        arrive(self.channel, 3)


async def test_a_stop_requeues_what_nobody_has_received(channel: DeliveryChannel, written: Written):
    arrive(channel, 1, 2)
    received = await channel.next()
    wire = Channel(channel)
    await channel.stop_receiving(wire, "billing")  # type: ignore[arg-type]
    assert wire.cancelled == ["billing"]
    assert sorted(each.delivery_tag for each in written.take()) == [2, 3]
    assert channel.unacked == 1
    channel.ack(received.tag)
    channel.flush()
    assert [each.delivery_tag for each in written.take()] == [1]
    arrive(channel, 4)
    assert [(type(each), each.delivery_tag) for each in written.take()] == [(commands.Basic.Nack, 4)]


async def test_it_counts_what_was_received_and_not_settled(channel: DeliveryChannel):
    arrive(channel, 1, 2, 3)
    assert channel.unacked == 0
    found: RawDelivery = await channel.next()
    assert channel.unacked == 1
    channel.ack(found.tag)
    assert channel.unacked == 0
