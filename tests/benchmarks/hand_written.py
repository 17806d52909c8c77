"""The consumer that one writes without outboxkit: aio-pika, SQLAlchemy, an inbox of its own, some messages at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aio_pika.abc import AbstractIncomingMessage
from sqlalchemy import Column, DateTime, String, Table, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from tests.benchmarks.receipts import Benchmarked, Model, write_receipt

inbox = Table(
    "benchmark_inbox",
    Model.metadata,
    Column("handler", String(255), primary_key=True),
    Column("message_id", String(255), primary_key=True),
    Column("processed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)


def handling(
    engine: AsyncEngine, concurrency: int, done: Callable[[], None]
) -> Callable[[AbstractIncomingMessage], Awaitable[Any]]:
    """The callback for a queue: a transaction for each message, and the ack after its commit."""
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    slots = asyncio.Semaphore(concurrency)

    async def handle(message: AbstractIncomingMessage) -> None:
        async with slots:
            async with sessions() as session, session.begin():
                row = insert(inbox).values(handler="receipts", message_id=message.message_id)
                found = await session.execute(row.on_conflict_do_nothing().returning(inbox.c.message_id))
                if found.first() is not None:
                    await write_receipt(session, msgspec.json.decode(message.body, type=Benchmarked))
            await message.ack()
        done()

    return handle
