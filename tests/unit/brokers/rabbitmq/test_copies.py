"""Copies without a broker: what is written, and which answer belongs to which copy."""

import asyncio
import time
from typing import Any

import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.confirm_channel import ConfirmChannel
from outboxkit.brokers.rabbitmq.confirms import ConfirmTracker
from outboxkit.brokers.rabbitmq.copies import OLD_CONNECTION_SECONDS, RetryPublisher
from outboxkit.brokers.rabbitmq.incoming import RawDelivery
from outboxkit.brokers.rabbitmq.topology import CopyRoute
from outboxkit.codec.headers import DeliveryHeaders
from tests.unit.brokers.rabbitmq.written import Wire

ROUTE = CopyRoute("outboxkit.delay.1s", "billing")


def arrived(id_: str | None = "m-1", body: bytes = b"body", **given: Any) -> RawDelivery:
    written = commands.Basic.Properties(message_id=id_, message_type="T", **given).marshal()
    flags, rest = int.from_bytes(written[:2]), written[2:]
    return RawDelivery(1, False, "billing", "orders.eu", flags, rest, decode.read_properties(flags, rest), body)


def opened(frame_max: int = 1000, *, timeout: float = 5) -> tuple[RetryPublisher, ConfirmTracker, Wire]:
    """A publisher that is connected, with the tracker of its channel."""
    copies, wire = RetryPublisher("amqp://mq/", name="test", timeout=timeout), Wire(frame_max, buffers=0)
    copies._channel = ConfirmChannel(wire, exchange="", app_id="")  # type: ignore[arg-type]
    copies._channel.tracker.on_blocked = copies._report_block
    copies._opened_at = time.monotonic()
    return copies, copies._channel.tracker, wire


def put(to: RetryPublisher, copied: RawDelivery, stopped: bool = True) -> "asyncio.Task[None]":
    end = asyncio.Event()
    if stopped:
        end.set()
    headers = DeliveryHeaders(attempt=2)
    return asyncio.create_task(to.put(copied, ROUTE, delivery_headers=headers, topic="orders.eu", stopped=end))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_copy_goes_to_its_queue_with_its_delivery_headers_and_its_whole_body():
    copies, tracker, wire = opened(frame_max=108)
    copying = put(copies, arrived(body=b"x" * 250, headers={"a": 1}))
    await turns()
    publish, header, *parts = wire.take()
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("outboxkit.delay.1s", "billing", True)
    assert isinstance(header, ContentHeader)
    assert header.body_size == 250
    assert header.properties.headers == {"a": 1, "outboxkit-attempt": 2, "outboxkit-topic": "orders.eu"}
    assert [len(part.value) for part in parts if isinstance(part, ContentBody)] == [100, 100, 50]
    assert b"".join(part.value for part in parts) == b"x" * 250
    tracker.ack(1, multiple=False)
    await copying


async def test_every_copy_gets_its_own_answer():
    copies, tracker, _ = opened()
    copying = [put(copies, arrived(str(number))) for number in range(1, 6)]
    await turns()
    tracker.returned("2", "there is no queue")
    tracker.ack(3, multiple=True)
    tracker.nack(4, multiple=False)
    tracker.closed(320, "CONNECTION_FORCED - maintenance", connection_too=True)
    await asyncio.wait(copying)
    assert [str(each.exception()).rpartition(": ")[2] for each in copying] == [
        "None",
        "there is no queue",
        "None",
        "nacked by the broker",
        "CONNECTION_FORCED - maintenance",
    ]


@pytest.mark.parametrize("id_", ["same", None])
async def test_no_id_is_there_twice_so_that_a_return_means_one(id_: str | None):
    copies, tracker, wire = opened()
    first, second = put(copies, arrived(id_)), put(copies, arrived(id_))
    await turns()
    assert wire.published() == 1
    tracker.returned(id_ or "", "there is no queue")
    tracker.ack(1, multiple=False)
    await turns()
    assert wire.published() == 1
    tracker.ack(2, multiple=False)
    await second
    with pytest.raises(BrokerUnavailable, match="there is no queue"):
        await first


async def test_an_answer_to_a_copy_that_nobody_waits_for_is_nobody_elses():
    copies, tracker, _ = opened()
    left = put(copies, arrived("1"))
    await turns()
    left.cancel()
    waiting = put(copies, arrived("2"))
    await turns()
    tracker.ack(1, multiple=False)
    await turns()
    assert not waiting.done()
    tracker.ack(2, multiple=False)
    await waiting


async def test_a_copy_behind_a_replaced_connection_is_sent_on_the_next():
    copies, tracker, wire = opened()
    copying = [put(copies, arrived("1"), stopped=False) for _ in range(3)]
    await turns()
    copies._opened_at -= 2 * OLD_CONNECTION_SECONDS
    channel, (fresh, fresh_tracker, fresh_wire) = copies._channel, opened()
    assert channel is not None

    async def reconnect() -> ConfirmChannel:
        copies._channel = fresh._channel
        assert fresh._channel is not None
        return fresh._channel

    copies._open = reconnect  # type: ignore[method-assign]
    tracker.nack(1, multiple=False)
    await turns()
    assert (wire.published(), fresh_wire.published()) == (2, 1), "the second one is faster than the replacement"
    fresh_tracker.ack(1, multiple=False)
    tracker.ack(2, multiple=False)
    await turns()
    assert (wire.published(), fresh_wire.published()) == (0, 1)
    fresh_tracker.ack(2, multiple=False)
    await asyncio.gather(*copying)
    assert not channel.is_open


async def test_a_channel_that_is_lost_while_a_copy_waits_for_the_writer_gives_it_up():
    copies, tracker, wire = opened()
    wire.write_queue = asyncio.Queue(maxsize=1)
    wire.write_queue.put_nowait(ChannelFrame(payload=b"", should_close=False))
    copying = put(copies, arrived("1"))
    await turns()
    tracker.closed(0, "the socket is gone", connection_too=True)
    wire.write_queue.get_nowait()
    with pytest.raises(BrokerUnavailable, match="the socket is gone"):
        await copying


async def test_while_publishers_are_blocked_a_copy_waits_and_no_limit_runs():
    copies, tracker, wire = opened(timeout=0.05)
    copying = put(copies, arrived("1"))
    await turns()
    assert wire.published() == 1
    with capture_logs() as said:
        tracker.blocked("low on memory")
        later = put(copies, arrived("2"))
        await asyncio.wait((copying, later), timeout=0.2)
        assert not copying.done()
        assert not later.done()
        assert wire.published() == 0, "what the broker does not read is not written"
        tracker.blocked(None)
    assert [line["event"] for line in said] == ["broker is away, waiting", "broker is back, work goes on"]
    tracker.ack(1, multiple=False)
    await copying
    await turns()
    tracker.ack(2, multiple=False)
    await later


async def test_the_limit_runs_anew_when_they_are_no_longer_blocked():
    copies, tracker, _ = opened(timeout=0.05)
    tracker.blocked("low on memory")
    copying = put(copies, arrived("1"))
    await turns()
    tracker.blocked(None)
    with pytest.raises(BrokerUnavailable, match=r"did not confirm a copy for 'outboxkit\.delay\.1s' in time"):
        await copying
    assert copies._channel is None, "a connection without answers is not used again"


async def test_a_copy_that_is_refused_for_a_right_waits_and_says_why_if_it_is_given_up():
    copies, tracker, _ = opened()
    copying = put(copies, arrived(), stopped=False)
    await turns()
    with capture_logs() as logs:
        tracker.closed(403, "ACCESS_REFUSED - access to exchange", connection_too=False)
        await turns()
    assert not copying.done()
    assert [(line["event"], line["full"]) for line in logs] == [("a queue takes no copies, waiting", ROUTE.name)]
    copying.cancel()
    with pytest.raises(asyncio.CancelledError) as given_up:
        await copying
    assert given_up.value.__notes__ == ["ACCESS_REFUSED - access to exchange"]
