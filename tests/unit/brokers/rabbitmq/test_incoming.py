"""A channel on which deliveries arrive, without a broker: who gets what, and what is written when."""

import asyncio

import pytest
from pamqp import commands, frame

from outboxkit import BrokerUnavailable
from outboxkit.brokers.rabbitmq.incoming import MAX_UNACKED_BYTES, DeliveryChannel, RawDelivery
from tests.unit.brokers.rabbitmq.test_delivery_parser import CHANNEL, pushed
from tests.unit.brokers.rabbitmq.written import Written


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def channel(written: Written) -> DeliveryChannel:
    made = DeliveryChannel(timeout=5, max_unacked_bytes=MAX_UNACKED_BYTES)
    made.writes_to(written)  # type: ignore[arg-type]
    made.listen(channel=CHANNEL)
    return made


def arrive(channel: DeliveryChannel, *tags: int) -> None:
    for tag in tags:
        assert channel.parser.feed(b"".join(pushed(tag, b"body"))) == b""


async def test_the_acks_of_one_moment_leave_as_one_frame_whatever_their_order(
    channel: DeliveryChannel, written: Written
):
    arrive(channel, *range(1, 101))
    for tag in range(99, 0, -1):
        channel.ack(tag)
    assert written.take() == []
    await asyncio.sleep(0)
    (ack,) = written.take()
    assert (ack.delivery_tag, ack.multiple) == (99, True)
    channel.ack(100)
    await asyncio.sleep(0)
    assert len(written.take()) == 1


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
    assert not channel.has_next, "they come again, and here they would only take memory"
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
