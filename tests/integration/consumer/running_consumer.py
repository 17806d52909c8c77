"""A consumer that runs beside a test, and its events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import event, inbox, inbox_handler, outbox, tables
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.consumer import Concurrency, Consumer
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async
from tests.support.tcp_proxy import TcpProxy


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@event("Billed")
@dataclass(frozen=True)
class Billed:
    number: int


@dataclass
class Running:
    """A consumer that runs beside the test."""

    consumer: Consumer
    broker: PlainClient
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def reaches(self, **outcomes: int) -> None:
        """Return once exactly these outcomes are counted; AssertionError if it takes too long."""

        async def counted() -> dict[str, int]:
            return {str(outcome): count for outcome, count in self.consumer.outcomes.items()}

        await eventually_async(counted, lambda found: found == outcomes)

    async def takes(self, numbers: Iterable[int], **outcomes: int) -> None:
        """Publish a message with each number, and return once exactly these outcomes are counted."""
        for number in numbers:
            publish(self.broker, number, f"m{number}")
        await self.reaches(**outcomes)


Start = Callable[..., AbstractAsyncContextManager[Running]]


def starter(
    engine: AsyncEngine,
    broker: PlainClient,
    delays: Sequence[timedelta] = DELAYS,
    *,
    in_loop: bool = False,
    thread_engine: Engine | None = None,
    ordered: bool = False,
) -> Start:
    """A function that starts a consumer of some handlers; it is stopped at the end of its block.

    Plain handlers run in threads, or all of them in the event loop.
    """
    kept = {"concurrency": Concurrency(ordered=True)} if ordered else {}

    @asynccontextmanager
    async def started(
        *functions: Callable[..., Any], topics: set[str] | None = None, **options: Any
    ) -> AsyncIterator[Running]:
        handlers = [inbox.handler_of(function) for function in functions]
        handlers = [each if each.is_async else replace(each, in_loop=in_loop) for each in handlers]
        types = {type_ for handler in handlers for type_ in handler.message_types}
        subscriber = subscriber_of(broker, topics or types, delays, ordered=ordered)
        running = Running(Consumer(engine, subscriber, handlers, queue=broker.queue, **kept | options), broker)
        running.consumer.thread_engine = thread_engine
        task = asyncio.create_task(running.consumer.run(running.stop))

        async def receives() -> bool:
            if task.done():
                await task
            return await asyncio.to_thread(lambda: broker.has_queue() and broker.consumers() > 0)

        await eventually_async(receives)
        try:
            yield running
        finally:
            running.stop.set()
            await task

    return started


def subscriber_of(
    broker: PlainClient, topics: set[str], delays: Sequence[timedelta] = DELAYS, **options: Any
) -> RabbitSubscriber:
    names = sorted(topics)
    return RabbitSubscriber(broker.url, broker.queue, exchange=broker.exchange, topics=names, delays=delays, **options)


def consumer_of(
    engine: AsyncEngine, broker: PlainClient, function: Callable[..., Any], *, ordered: bool = False
) -> Consumer:
    """A consumer of one handler, to be drained."""
    handler, concurrency = inbox.handler_of(function), Concurrency(4, batch=50, ordered=ordered)
    prefetch = concurrency.prefetch([handler])
    subscriber = subscriber_of(broker, set(handler.message_types), ordered=ordered, prefetch=prefetch)
    return Consumer(engine, subscriber, [handler], queue=broker.queue, concurrency=concurrency)


async def declare(broker: PlainClient, topics: set[str], *, ordered: bool = False) -> None:
    """Have the consumer's queue there, so that messages can be published before a consumer runs."""
    subscriber = subscriber_of(broker, topics, ordered=ordered)
    await subscriber.connect()
    await subscriber.close()


@contextmanager
def behind_proxy(broker: PlainClient) -> Iterator[tuple[TcpProxy, PlainClient]]:
    """A proxy before the broker, and the same client through it."""
    target = make_url(broker.url)
    proxy, through = TcpProxy(target.host or "localhost", target.port or 5672), copy(broker)
    through.url = target.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    try:
        yield proxy, through
    finally:
        through.disconnect()
        proxy.close()


def publish(broker: PlainClient, number: int, id_: str, **properties: Any) -> None:
    body = b'{"number":%d}' % number
    broker.publish(body, topic="Ordered", **({"message_id": id_, "type": "Ordered"} | properties))


def dead_letters(engine: Engine) -> Sequence[Any]:
    with engine.connect() as connection:
        return connection.execute(select(tables.dead_letter).order_by(tables.dead_letter.c.id)).all()


def processed(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        asked = select(tables.inbox.c.handler, tables.inbox.c.message_id).order_by(*tables.inbox.primary_key)
        return [tuple(row) for row in connection.execute(asked)]


def ended(engine: Engine) -> set[str]:
    """The ids of messages that were handled or are dead letters. One without an id counts, too."""
    letters = {letter.message_id or f"letter {letter.id}" for letter in dead_letters(engine)}
    return letters | {id_ for _, id_ in processed(engine)}


@inbox_handler("Bill")
async def bill(session: AsyncSession, event: Ordered) -> None:
    outbox.add(session, Billed(event.number))
