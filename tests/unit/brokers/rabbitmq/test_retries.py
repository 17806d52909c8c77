"""Copies without a broker: what is written, and which answer belongs to which copy."""

import asyncio
from typing import Any

import pytest
import structlog
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from outboxkit import BrokerUnavailable
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.retries import NACKED, RetryPublisher, _CopyChannel
from outboxkit.brokers.rabbitmq.taps import RawDelivery
from outboxkit.brokers.rabbitmq.topology import CopyRoute
from outboxkit.brokers.reserved import DeliveryHeaders
from tests.servers.ports import free_ports
from tests.unit.brokers.rabbitmq.written import Written

ROUTE = CopyRoute("outboxkit.delay.1s", "billing")


def arrived(id_: str | None = "m-1", body: bytes = b"body", **given: Any) -> RawDelivery:
    written = commands.Basic.Properties(message_id=id_, message_type="T", **given).marshal()
    flags, rest = int.from_bytes(written[:2]), written[2:]
    return RawDelivery(1, False, "billing", "orders.eu", flags, rest, decode.read_properties(flags, rest), body)


def copy_channel(room: int = 1000) -> tuple[_CopyChannel, Written]:
    made, written = _CopyChannel(structlog.get_logger("test")), Written()
    made.number, made.room = 1, room
    made.writes_to(written)  # type: ignore[arg-type]
    return made, written


def put(to: _CopyChannel, copied: RawDelivery) -> "asyncio.Task[str | None]":
    return asyncio.create_task(to.put(copied, ROUTE, DeliveryHeaders(attempt=2), "orders.eu", timeout=5))


async def test_a_copy_goes_to_its_queue_with_its_delivery_headers_and_its_whole_body():
    made, written = copy_channel(room=100)
    copying = put(made, arrived(body=b"x" * 250, headers={"a": 1}))
    await asyncio.sleep(0)
    publish, header, *parts = written.take()
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("outboxkit.delay.1s", "billing", True)
    assert isinstance(header, ContentHeader)
    assert header.body_size == 250
    assert header.properties.headers == {"a": 1, "outboxkit-attempt": 2, "outboxkit-topic": "orders.eu"}
    assert all(isinstance(part, ContentBody) for part in parts)
    assert b"".join(part.value for part in parts) == b"x" * 250
    made.ack(1, multiple=False)
    assert await copying is None


async def test_every_copy_gets_its_own_answer():
    made, _ = copy_channel()
    copying = [put(made, arrived(str(number))) for number in range(1, 6)]
    await asyncio.sleep(0)
    made.returned("2", "there is no queue")
    made.ack(3, multiple=True)
    made.nack(4, multiple=False)
    made.closed(320, "maintenance", connection_too=True)
    assert [await each for each in copying] == [
        None,
        "there is no queue",
        None,
        NACKED,
        "320 maintenance",
    ]
    assert await put(made, arrived("6")) == "320 maintenance"


@pytest.mark.parametrize("id_", ["same", None])
async def test_no_id_is_there_twice_so_that_a_return_means_one(id_: str | None):
    made, written = copy_channel()
    copying = [put(made, arrived(id_)) for _ in range(2)]
    await asyncio.sleep(0)
    assert len([each for each in written.take() if isinstance(each, commands.Basic.Publish)]) == 1
    made.returned(id_ or "", "there is no queue")
    made.ack(1, multiple=False)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len([each for each in written.take() if isinstance(each, commands.Basic.Publish)]) == 1
    made.ack(2, multiple=False)
    assert [await each for each in copying] == ["there is no queue", None]


async def test_an_answer_to_a_copy_that_nobody_waits_for_is_nobody_elses():
    made, _ = copy_channel()
    left = put(made, arrived("1"))
    await asyncio.sleep(0)
    left.cancel()
    waiting = put(made, arrived("2"))
    await asyncio.sleep(0)
    made.ack(1, multiple=False)
    await asyncio.sleep(0)
    assert not waiting.done()
    made.ack(2, multiple=False)
    assert await waiting is None


async def test_in_the_turn_of_the_answer_the_next_copy_with_that_id_leaves():
    made, written = copy_channel()
    first = put(made, arrived("1"))
    await asyncio.sleep(0)
    written.take()

    async def next_one() -> str | None:
        made.ack(1, multiple=False)
        return await made.put(arrived("1"), ROUTE, DeliveryHeaders(), "orders.eu", timeout=5)

    second = asyncio.create_task(next_one())
    await asyncio.sleep(0)
    assert len(written.take()) == 3
    made.returned("1", "NO_ROUTE")
    made.ack(2, multiple=False)
    assert (await first, await second) == (None, "NO_ROUTE")


async def test_a_connection_that_ends_under_a_copy_is_lost():
    """The transport refuses to write before anybody is told that it has ended."""
    made, _ = copy_channel()

    class Ended:
        def write(self, _: bytes) -> None:
            raise RuntimeError("Cannot call write() after write_eof()")

    made.writes_to(Ended())  # type: ignore[arg-type]
    refusal = await put(made, arrived("1"))
    assert refusal == made.lost == "the connection was closed: Cannot call write() after write_eof()"


async def test_while_publishers_are_blocked_a_copy_waits_and_no_limit_runs():
    copies = RetryPublisher("amqp://mq/", name="test", timeout=0.05)
    copies._channel, written = copy_channel()
    copying = asyncio.create_task(
        copies.put(arrived("1"), ROUTE, delivery_headers=DeliveryHeaders(), topic="t", stopped=asyncio.Event())
    )
    await asyncio.sleep(0)
    assert len(written.take()) == 3
    copies._channel.blocked("low on memory")
    later = asyncio.create_task(
        copies.put(arrived("2"), ROUTE, delivery_headers=DeliveryHeaders(), topic="t", stopped=asyncio.Event())
    )
    await asyncio.wait((copying, later), timeout=0.2)
    assert not copying.done()
    assert not later.done()
    assert written.take() == [], "what the broker does not read is not written"
    copies._channel.blocked(None)
    copies._channel.ack(1, multiple=False)
    await copying
    while not written.bytes:
        await asyncio.sleep(0)
    copies._channel.ack(2, multiple=False)
    await later


async def test_the_limit_runs_anew_when_they_are_no_longer_blocked():
    copies = RetryPublisher("amqp://mq/", name="test", timeout=0.05)
    copies._channel, _ = copy_channel()
    copies._channel.blocked("low on memory")
    copying = asyncio.create_task(
        copies.put(arrived("1"), ROUTE, delivery_headers=DeliveryHeaders(), topic="t", stopped=asyncio.Event())
    )
    await asyncio.sleep(0)
    copies._channel.blocked(None)
    with pytest.raises(BrokerUnavailable, match=r"did not confirm a copy for 'outboxkit\.delay\.1s' in time"):
        await copying


async def test_without_a_broker_there_is_no_copy():
    (port,) = free_ports(1)
    copies = RetryPublisher(f"amqp://127.0.0.1:{port}/", name="test", timeout=5)
    with pytest.raises(BrokerUnavailable):
        await copies.put(arrived(), ROUTE, delivery_headers=DeliveryHeaders(), topic="t", stopped=asyncio.Event())
    await copies.close()
    await copies.close()
