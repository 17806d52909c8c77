"""The application of the acceptance tests: orders, and an effect for each confirmed one.

No effect is unique in the database, so that one which happened twice can be seen.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import Message, Reject, event, inbox_handler, outbox

GATE = 4711
"""While a test holds this advisory lock, handlers of `OrderGated` wait inside their transaction."""
GATED = 2
"""While a test holds it, messages of the till whose number is so, modulo five, wait as well."""


class Tables(DeclarativeBase):
    pass


class Order(Tables):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[Decimal]


class Effect(Tables):
    __tablename__ = "shop_effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    message_id: Mapped[str]


@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int
    total: Decimal


@event("OrderGated")
@dataclass(frozen=True)
class OrderGated:
    order_id: int


@event("OrderRefused")
@dataclass(frozen=True)
class OrderRefused:
    order_id: int


@inbox_handler("HandleOrderConfirmed")
async def confirm(session: AsyncSession, event: OrderConfirmed, message: Message) -> None:
    session.add(Effect(order_id=event.order_id, message_id=message.id))


@inbox_handler("HandleOrderGated")
async def pass_gate(session: AsyncSession, event: OrderGated, message: Message) -> None:
    session.add(Effect(order_id=event.order_id, message_id=message.id))
    await session.flush()
    await session.execute(select(func.pg_advisory_xact_lock_shared(GATE)))


@inbox_handler("HandleOrderRefused")
def refuse(session: Session, event: OrderRefused) -> None:
    raise Reject("not wanted")


def take_orders(engine: Engine, numbers: range, *, roll_back_every: int = 0) -> set[int]:
    """Take an order in a transaction each, and roll back every so many of them; the orders that stay."""
    kept = set()
    for number in numbers:
        with Session(engine) as session:
            session.add(Order(id=number, total=Decimal(number) / 100))
            outbox.add(session, OrderConfirmed(number, Decimal(number) / 100), key=f"order-{number}")
            session.flush()
            if roll_back_every and number % roll_back_every == 0:
                session.rollback()
            else:
                session.commit()
                kept.add(number)
    return kept


def send(engine: Engine, *events: object, **options: Any) -> list[Message]:
    """Add events in one transaction."""
    with Session(engine) as session, session.begin():
        return [outbox.add(session, event, **options) for event in events]
