"""Messages that another language adds: an INSERT with the columns that docs/reference/tables.md names."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import event
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.codec import upcasts
from outboxkit.relay import Relay


@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int


async def test_three_columns_make_a_message(engine: Engine, async_engine: AsyncEngine):
    insert = "INSERT INTO outboxkit_outbox (message_id, type, payload) VALUES ('php-1', 'OrderConfirmed', :payload)"
    with engine.begin() as connection:
        connection.execute(text(insert), {"payload": b'{"order_id": 7}'})
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "billing", ["OrderConfirmed"])
    drained = await Relay(async_engine, MemoryPublisher(broker), keep_published=True).drain(asyncio.Event())
    assert (drained.published, drained.is_complete) == (1, True)
    (entry,) = subscriber.queue.ready
    message = entry.message
    assert (message.id, message.content_type, dict(message.headers)) == ("php-1", "application/json", {})
    assert upcasts.event_of(OrderConfirmed, message) == OrderConfirmed(7)
