"""The demo's shop: an order, the event that it is confirmed, and a handler that writes a receipt."""

from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outboxkit import event, inbox_handler, outbox


class Shop(DeclarativeBase):
    """The shop's own tables, beside those of outboxkit."""


class Order(Shop):
    """An order that a customer confirmed."""

    __tablename__ = "demo_order"

    number: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[Decimal]


class SentReceipt(Shop):
    """The effect that must happen once for each order. Nothing here forbids a second one, so that it would show."""

    __tablename__ = "demo_receipt"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_number: Mapped[int]


@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    """A customer confirmed an order."""

    number: int
    total: Decimal


@inbox_handler("SendReceipt")
async def send_receipt(session: AsyncSession, event: OrderConfirmed) -> None:
    """Write the receipt of a confirmed order."""
    session.add(SentReceipt(order_number=event.number))


def confirm(session: AsyncSession, number: int) -> None:
    """Write the order and its event in one transaction."""
    order = Order(number=number, total=Decimal(number) / 100)
    session.add(order)
    outbox.add(session, OrderConfirmed(order.number, order.total), key=f"order-{number}")


def count_orders() -> Select[int]:
    """Orders that were committed."""
    return select(func.count()).select_from(Order)


def count_receipts() -> Select[int, int, int]:
    """Receipts, the committed orders that they belong to, and receipts of no such order."""
    return (
        select(func.count(), func.count(Order.number.distinct()), func.count().filter(Order.number.is_(None)))
        .select_from(SentReceipt)
        .outerjoin(Order, Order.number == SentReceipt.order_number)
    )
