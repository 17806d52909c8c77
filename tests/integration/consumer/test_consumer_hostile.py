"""What any client may send and no copy can carry as it is: such a message that fails ends among the dead letters."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Message, inbox_handler
from outboxkit.brokers.rabbitmq import confirm_channel, copies
from outboxkit.brokers.rabbitmq.confirms import ConfirmTracker
from outboxkit.consumer import ConsumerPolicy
from tests.integration.consumer.running_consumer import Ordered, dead_letters, starter, subscriber_of
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

FULL = 130_900
"""Bytes of headers that a frame holds, and ours beside them not."""
FORGED = '"}\n{"event": "forged"}\n\x1b[31m'
NESTED: dict[str, Any] = {"n" * 200: {"m" * 255: [1, {FORGED: b"\xff"}]}}
HOSTILE: tuple[dict[str, Any], ...] = (
    {"headers": {"one": "x" * FULL}},
    {"headers": {f"{number:08}": "y" * 100 for number in range(FULL // 114)}},
    {"headers": {"outboxkit-key": "k" * 255, "b": "x" * (FULL - 300)}},
    {"headers": {"n" * 255: 1, FORGED: "x", "a" * 129: None}},
    {"headers": {"deep": NESTED, "list": [NESTED, [b"\x00\xff"]]}},
    {"headers": {"decimal": Decimal("1.5"), "time": datetime(2026, 1, 1, tzinfo=UTC), "int": -(2**63)}},
    {"headers": {"outboxkit-topic": "t" * 100_000}},
    {"headers": {"outboxkit-attempt": 1, "CC": ["nowhere"], "BCC": ["nowhere"], "x-delay": "?"}},
    {"headers": {"": "no name"}, "priority": 255, "reply_to": "r" * 255, "app_id": "a" * 255, "expiration": "99999999"},
    {"content_type": "t" * 255, "content_encoding": "e" * 255, "correlation_id": "c" * 255, "cluster_id": "i" * 255},
    {"timestamp": 2**62},
    {"timestamp": 99_999_999_999, "delivery_mode": 1},
)


BACK_AGAIN = {"headers": {"x-delivery-count": 50}}
"""As if it had come back too often. The second one also has a property that cannot be read."""
RENEWED: tuple[dict[str, Any], ...] = (BACK_AGAIN, BACK_AGAIN | {"content_type": b"\xff\xfe"})


async def test_whatever_is_on_a_message_that_fails_it_is_contained_and_the_connection_lives(
    async_pg_engine: AsyncEngine,
    pg_engine: Engine,
    broker: PlainClient,
    capfd: pytest.CaptureFixture[str],
):
    @inbox_handler("Fails")
    async def fails(session: AsyncSession, event: Ordered) -> None:
        raise ValueError("boom")

    with capture_logs() as said:
        async with starter(async_pg_engine, broker)(fails, policy=ConsumerPolicy(max_attempts=3, delays=DELAYS)):
            for number, properties in enumerate((*HOSTILE, *RENEWED)):
                broker.publish(
                    b'{"number":1}', topic="Ordered", **({"message_id": f"m-{number}", "type": "Ordered"} | properties)
                )

            async def dead() -> set[str]:
                return {row.message_id for row in await asyncio.to_thread(dead_letters, pg_engine)}

            await eventually_async(dead, lambda found: len(found) == len((*HOSTILE, *RENEWED)))
    assert len([line for line in said if line["event"] == "consumer connected"]) == 1
    assert "forged" not in "".join(capfd.readouterr())


async def test_what_came_back_too_often_is_renewed_though_its_headers_fill_a_frame(broker: PlainClient):
    subscriber = subscriber_of(broker, {"Ordered"})
    await subscriber.connect()
    for properties in HOSTILE:
        broker.publish(b"{}", topic="Ordered", **({"message_id": "m", "type": "Ordered"} | properties))
        delivery = await subscriber.receive()
        assert delivery is not None
        await delivery.requeue_fresh()
        again = await subscriber.receive()
        assert again is not None
        is_readable = delivery.raw.properties.unreadable is None
        kind = type(delivery.message) if is_readable else Message  # a copy has what could be read
        assert (again.redeliveries, type(again.message)) == (0, kind)
        await again.ack()
    await subscriber.close()
    assert broker.depth() == 0


async def test_a_nack_is_tried_again_on_a_fresh_connection(broker: PlainClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "OLD_CONNECTION_SECONDS", 0.0)
    trackers = []

    class Estranged(ConfirmTracker):
        """As a channel that has lost sight of its queue's leader: the first one reads every confirm as a nack."""

        def __init__(self, on_change: Callable[[], None]) -> None:
            super().__init__(on_change)
            trackers.append(self)

        def ack(self, tag: int, *, multiple: bool) -> None:
            (super().nack if trackers[0] is self else super().ack)(tag, multiple=multiple)

    monkeypatch.setattr(confirm_channel, "ConfirmTracker", Estranged)
    subscriber = subscriber_of(broker, {"Ordered"})
    await subscriber.connect()
    for number in range(5):
        broker.publish(b"{}", topic="Ordered", message_id=str(number), type="Ordered")
    deliveries = [await subscriber.receive() for _ in range(5)]
    with capture_logs() as said:
        assert await asyncio.gather(*(each.retry() for each in deliveries if each)) == [DELAYS[0]] * 5
    assert len(trackers) == 2, "all of them on one fresh connection"
    assert said == [], "a nack that a fresh connection mends is not worth a line"
    await subscriber.connect()
    assert subscriber._channel is not None
    assert subscriber._channel.lost is None
    await subscriber.close()


async def test_a_cancellation_that_nobody_asked_for_is_a_lost_connection(
    broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    async def cancelled(*_: object, **__: object) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    subscriber = subscriber_of(broker, {"Ordered"})
    for target in ("aio_pika.Connection.connect", "aio_pika.Channel.declare_queue", "aio_pika.Channel.set_qos"):
        with monkeypatch.context() as patched:
            patched.setattr(target, cancelled)
            with pytest.raises(BrokerUnavailable, match="the connection ended meanwhile"):
                await subscriber.connect()
    await subscriber.connect()
    broker.publish(b"{}", topic="Ordered", message_id="m", type="Ordered")
    with monkeypatch.context() as patched:
        patched.setattr("aiormq.Channel.basic_consume", cancelled)
        with pytest.raises(BrokerUnavailable):
            await subscriber.receive()
    await subscriber.connect()
    delivery = await subscriber.receive()
    assert delivery is not None
    asked = asyncio.create_task(subscriber.receive())
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await subscriber.close()
