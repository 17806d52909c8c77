"""A service before its events change: `OrderApproved`, and `OrderPriced` in version 1."""

from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import event, inbox_handler

metadata = MetaData()
effects = Table("effects", metadata, Column("id", Integer, primary_key=True), Column("what", String, nullable=False))


@event("OrderApproved")
@dataclass(frozen=True)
class OrderApproved:
    order: int


@event("OrderPriced")
@dataclass(frozen=True)
class OrderPriced:
    order: int
    cents: int


@inbox_handler("ShipOrder")
async def ship(session: AsyncSession, event: OrderApproved) -> None:
    await session.execute(insert(effects).values(what=f"ship {event.order}"))


@inbox_handler("BillOrder")
async def bill(session: AsyncSession, event: OrderPriced) -> None:
    await session.execute(insert(effects).values(what=f"bill {event.order}"))
