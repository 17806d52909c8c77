"""Add, relay, handle: one process, an SQLite file and a broker in memory. Run `python examples/1_hello/hello.py`."""

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from tempfile import TemporaryDirectory

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import outboxkit
from outboxkit import Outcome, event, inbox, inbox_handler, outbox
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.consumer import Consumer
from outboxkit.relay import Relay
from outboxkit.runtime import process


class Base(DeclarativeBase): ...


class Receipt(Base):
    __tablename__ = "receipt"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int
    total: Decimal


@inbox_handler("SendReceipt")
async def send_receipt(session: AsyncSession, event: OrderConfirmed) -> None:
    session.add(Receipt(order_id=event.order_id))
    print(f"handler:     a receipt for order {event.order_id} over {event.total}")


async def hello(url: str) -> None:
    engine, stop, broker = process.engine(url, name="hello"), asyncio.Event(), MemoryBroker()
    relay = Relay(engine, MemoryPublisher(broker))
    queue = MemorySubscriber(broker, "receipts", ["OrderConfirmed"])
    consumer = Consumer(engine, queue, [inbox.handler_of(send_receipt)], queue="receipts")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.run_sync(outboxkit.metadata.create_all)

    async with AsyncSession(engine) as session:
        message = outbox.add(session, OrderConfirmed(1, Decimal("12.50")), key="order-1")
        await session.commit()
        print(f"committed:   order 1, with message {message.id}")
        outbox.add(session, OrderConfirmed(2, Decimal("99.00")), key="order-2")
        await session.rollback()
        print("rolled back: order 2, with its message")

    print(f"relay:       published {(await relay.drain(stop)).published}")
    broker.route(message)  # as if the relay had died before it could note that it was published
    print("broker:      the same message a second time")
    outcomes = (await consumer.drain(stop)).outcomes
    print(f"consumer:    {outcomes[Outcome.PROCESSED]} processed, {outcomes[Outcome.DUPLICATE]} duplicate")

    async with AsyncSession(engine) as session:
        print(f"receipts:    {await session.scalar(select(func.count()).select_from(Receipt))}")
    await engine.dispose()


if __name__ == "__main__":
    process.configure_log(level="warning")
    with TemporaryDirectory() as folder:
        asyncio.run(hello(f"sqlite:///{folder}/hello.db"))
