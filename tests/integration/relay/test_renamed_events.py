"""A renamed event reaches every queue: those that are bound for its new name, for an old one, or for both."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import event, outbox, tables
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.relay import Relay
from outboxkit.testing import outbox_messages
from tests.support.plain_client import PlainClient


@event("OrderPlaced", aliases=("OrderConfirmed", "Order.Approved"))
@dataclass(frozen=True)
class OrderPlaced:
    number: int


def place(engine: Engine, **options: str) -> None:
    with Session(engine) as session, session.begin():
        message = outbox.add(session, OrderPlaced(1), headers={"tenant": "north"}, **options)
        assert dict(message.headers) == {"tenant": "north"}
        assert dict(outbox_messages(session)[0].message.headers) == {"tenant": "north"}
        session.flush()
        assert dict(outbox_messages(session)[0].message.headers) == {"tenant": "north"}


async def test_each_queue_gets_one_copy(pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient):
    queues = {
        broker.bind(*bound, queue=f"{broker.queue}-{number}"): copies
        for number, (bound, copies) in enumerate(
            ((("OrderConfirmed",), 1), (("OrderPlaced",), 1), (("OrderConfirmed", "OrderPlaced", "Order.*"), 1),
             (("Other",), 0))
        )
    }  # fmt: skip
    place(pg_engine)
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    drained = await Relay(async_pg_engine, publisher).drain(asyncio.Event())
    assert (drained.published, drained.is_complete) == (1, True)
    for queue, copies in queues.items():
        received = broker.take_all(queue)
        assert len(received) == copies, queue
        assert all(each.properties.headers == {"tenant": "north"} for each in received)
        assert all(each.properties.type == "OrderPlaced" for each in received)


async def test_one_that_only_an_old_queue_wants_is_not_unroutable(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    broker.bind("OrderConfirmed")
    place(pg_engine)
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    assert (await Relay(async_pg_engine, publisher).drain(asyncio.Event())).is_complete
    assert len(broker.take_all()) == 1


def test_a_message_with_a_topic_of_its_own_goes_there_alone(engine: Engine):
    place(engine, topic="somewhere")
    with engine.connect() as connection:
        assert connection.execute(select(tables.outbox.c.headers)).scalar_one() == b'{"tenant":"north"}'


async def test_the_broker_of_tests_does_the_same(engine: Engine, async_engine: AsyncEngine):
    broker = MemoryBroker()
    old = MemorySubscriber(broker, "mail", ["OrderConfirmed"])
    both = MemorySubscriber(broker, "billing", ["OrderConfirmed", "OrderPlaced"])
    place(engine)
    assert (await Relay(async_engine, MemoryPublisher(broker)).drain(asyncio.Event())).is_complete
    for subscriber in (old, both):
        (entry,) = subscriber.queue.ready
        assert dict(entry.message.headers) == {"tenant": "north"}
