"""The consumers that are compared: each drains a durable quorum queue, in a process of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from sqlalchemy.ext.asyncio import create_async_engine

from outboxkit import defaults
from outboxkit.brokers import Subscriber
from outboxkit.consumer import Concurrency, Consumer
from outboxkit.consumer.handle import HandlerRunner
from outboxkit.consumer.routing import Arrival
from outboxkit.inbox import Handler, handler_of
from outboxkit.runtime import process
from tests.benchmarks import hand_written, receipts
from tests.benchmarks.raw_publisher import EXCHANGE, TYPE
from tests.support.statements_sent import StatementsSent

CONCURRENCY = Concurrency(transactions=8, batch=200)
PREFETCH = 64
AHEAD = 2 * CONCURRENCY.batch
"""What a consumer that only receives is pushed ahead: as much as ours in batches."""
DELAYS = defaults.RETRY_DELAYS[:1]


@dataclass(frozen=True)
class Orders:
    """What a consumer is to do.

    Attributes:
        consumer: its name in `DRAINS`.
        count: of messages.
        every: after how many messages it says how far it is.
        trace: whether what the database is sent is counted.
    """

    consumer: str
    database_url: str
    broker_url: str
    queue: str
    count: int
    every: int
    trace: bool = False


@dataclass
class Drain:
    """A consumer that is connected and has received nothing yet.

    Attributes:
        work: consumes until `stop` is set, or all messages are acked.
        done: how many messages it is through with.
        sent: what its database was sent, where that is counted.
    """

    work: Callable[[asyncio.Event], Coroutine[Any, Any, object]]
    done: Callable[[], int]
    sent: StatementsSent | None = None


Callback = Callable[[AbstractIncomingMessage], Awaitable[Any]]


@asynccontextmanager
async def raw(orders: Orders) -> AsyncIterator[Drain]:
    """aio-pika's own consumer, which acks and does nothing else."""
    done = list[None]()

    async def ack(message: AbstractIncomingMessage) -> None:
        await message.ack()
        done.append(None)

    async with await aio_pika.connect_robust(orders.broker_url) as connection:
        yield Drain(partial(_consume, connection, orders.queue, AHEAD, ack), done.__len__)


@asynccontextmanager
async def by_hand(orders: Orders) -> AsyncIterator[Drain]:
    """A transaction for each message through the same consumer, with an inbox that is written by hand."""
    done = list[None]()
    engine = create_async_engine(orders.database_url, pool_size=CONCURRENCY.transactions)
    sent = StatementsSent(engine) if orders.trace else None
    async with await aio_pika.connect_robust(orders.broker_url) as connection:
        callback = hand_written.handling(engine, CONCURRENCY.transactions, lambda: done.append(None))
        yield Drain(partial(_consume, connection, orders.queue, PREFETCH, callback), done.__len__, sent)
    await engine.dispose()


@asynccontextmanager
async def ours(orders: Orders, *, handler: Handler) -> AsyncIterator[Drain]:
    """outboxkit's consumer, as `outboxkit consume` builds it."""
    engine = process.engine(orders.database_url, name="outboxkit consumer", pool_size=CONCURRENCY.transactions + 1)
    sent = StatementsSent(engine) if orders.trace else None
    subscriber = _subscriber(orders, prefetch=CONCURRENCY.prefetch([handler]))
    consumer = Consumer(engine, subscriber, [handler], queue=orders.queue, concurrency=CONCURRENCY)
    await subscriber.connect()
    yield Drain(consumer.run, consumer.outcomes.total, sent)
    await subscriber.close()
    await engine.dispose()


@asynccontextmanager
async def asking_nothing(orders: Orders) -> AsyncIterator[Drain]:
    """outboxkit's consumer, which does not ask by one query for the duplicates that wait."""

    async def recall(self: HandlerRunner, arrivals: Sequence[Arrival], stop: asyncio.Event) -> None:
        for each in arrivals:
            each.done = frozenset()

    HandlerRunner.recall = recall  # type: ignore[method-assign]
    async with ours(orders, handler=handler_of(receipts.one)) as drain:
        yield drain


def _subscriber(orders: Orders, *, prefetch: int) -> Subscriber:
    return process.subscriber(
        orders.broker_url, orders.queue, exchange=EXCHANGE, topics=[TYPE], prefetch=prefetch, delays=DELAYS
    )


async def _consume(
    connection: AbstractConnection, queue: str, prefetch: int, callback: Callback, stop: asyncio.Event
) -> None:
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=prefetch)
    await (await channel.get_queue(queue)).consume(callback)
    await stop.wait()


async def declare(broker_url: str, queue: str) -> None:
    """The queue, as outboxkit's consumer declares it, for all of them."""
    subscriber = _subscriber(Orders("", "", broker_url, queue, 0, 0), prefetch=1)
    await subscriber.connect()
    await subscriber.close()


DRAINS: Mapping[str, Callable[[Orders], AbstractAsyncContextManager[Drain]]] = {
    "raw": raw,
    "hand-written": by_hand,
    "per message": partial(ours, handler=handler_of(receipts.one)),
    "without the query": asking_nothing,
    "batch": partial(ours, handler=handler_of(receipts.many)),
    "per message, thread": partial(ours, handler=handler_of(receipts.one_in_thread)),
}
