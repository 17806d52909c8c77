"""A user's program, which mypy --strict and pyright read beside a wheel. `assert_type` says which types they must see.

Nothing runs it.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from types import ModuleType
from typing import Any, assert_type

import msgspec
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import outboxkit
from outboxkit import Message, Outcome, Reject, Retries, Retry, effects, event, ids, inbox, inbox_handler, outbox
from outboxkit.effects import Effect
from outboxkit.http.asgi import IdempotencyMiddleware
from outboxkit.http.fastapi import Idempotent
from outboxkit.inbox import Handler
from outboxkit.runtime import compose
from outboxkit.runtime.settings import Settings, load


class Table(DeclarativeBase):
    metadata = outboxkit.metadata


class Receipt(Table):
    __tablename__ = "receipts"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[Decimal]


@event("OrderConfirmed", strict_order=True)
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int
    total: Decimal


@event("OrderCancelled", unroutable="discard")
class OrderCancelled(msgspec.Struct):
    order_id: int


@inbox_handler("billing.BookOrder", timeout=timedelta(seconds=5), retry=Retries(max_attempts=3))
def book_order(session: Session, event: OrderConfirmed) -> None:
    session.add(Receipt(order_id=event.order_id, total=event.total))
    outbox.add(session, OrderCancelled(event.order_id), key=f"order-{event.order_id}")


@inbox_handler("billing.AuditOrder")
async def audit_order(session: AsyncSession, event: OrderConfirmed, message: Message) -> None:
    if event.total < 0:
        raise Reject(f"order {event.order_id} has a negative total")
    if await session.get(Receipt, event.order_id) is None:
        raise Retry("not booked yet", after=10)
    outbox.add(session, OrderCancelled(event.order_id), correlation_id=message.correlation_id)


def confirm(session: Session) -> None:
    order = OrderConfirmed(1, Decimal("19.90"))
    assert_type(order, OrderConfirmed)
    assert_type(order.total, Decimal)
    message = outbox.add(session, order, key="order-1", headers={"tenant": "acme"}, deliver_at=None)
    assert_type(message, Message)
    assert_type((message.id, message.key, message.payload), tuple[str, str | None, bytes])
    assert_type(outbox.add_all(session, [order, OrderCancelled(2)]), list[Message])
    assert_type(outbox.cancel(session, message.id), bool)
    assert_type(inbox.run_once(session, message, book_order), Outcome)
    assert_type(ids.new(), str)
    assert_type(outboxkit.metadata, MetaData)
    handlers: tuple[
        Callable[[Session, OrderConfirmed], None],
        Callable[[AsyncSession, OrderConfirmed, Message], Coroutine[Any, Any, None]],
    ] = (book_order, audit_order)
    assert_type(inbox.handler_of(handlers[0]), Handler)


async def consume_by_hand(session: AsyncSession, message: Message) -> None:
    assert_type(await session.run_sync(inbox.run_once, message, audit_order), Outcome)


def once(session: Session) -> None:
    sync = sessionmaker(create_engine("postgresql+psycopg2://db/shop"))
    assert_type(effects.once(sync, "receipt-1", lambda: 7, on_unknown="skip"), Effect)


async def once_in_a_loop() -> None:
    async def call() -> int:
        return 7

    sessions = async_sessionmaker(create_async_engine("postgresql+asyncpg://db/shop"))
    effect = await effects.once(sessions, "receipt-1", call, on_unknown="repeat")
    assert_type(effect, Effect)


async def work(settings: Settings, stop: asyncio.Event) -> int:
    module: ModuleType = sys.modules[__name__]
    handlers = inbox.handlers_in([module])
    assert_type(handlers, list[Handler])
    async with compose.relay(settings) as relay, compose.consumer(settings, handlers) as consumer:
        await asyncio.gather(relay.run(stop), consumer.run(stop))
        await consumer.drain(stop)
    return 0


def serve(app: Any, sessions: async_sessionmaker[AsyncSession]) -> None:
    IdempotencyMiddleware(app, sessions, principal=None)
    assert_type(load(), Settings)
    sys.exit(compose.main("shop", work))


async def get_session() -> AsyncSession:
    raise NotImplementedError


idempotent = Idempotent(session=get_session, principal=None)
