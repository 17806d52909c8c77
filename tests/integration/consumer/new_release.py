"""The same service in its next release: `OrderApproved` is `OrderConfirmed`, and both events need a new field."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import event, inbox_handler, upcast
from tests.integration.consumer.old_release import effects


@event("OrderConfirmed", version=2, aliases=("OrderApproved",))
@dataclass(frozen=True)
class OrderConfirmed:
    order: int
    country: str


@upcast("OrderApproved", 1)
def add_country(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"country": "DE"}


@event("OrderPriced", version=2)
@dataclass(frozen=True)
class OrderPriced:
    order: int
    cents: int
    currency: str


@upcast("OrderPriced", 1)
def add_currency(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"currency": "EUR"}


@inbox_handler("ShipOrder")
async def ship(session: AsyncSession, event: OrderConfirmed) -> None:
    assert event.country == "DE"
    await session.execute(insert(effects).values(what=f"ship {event.order}"))


@inbox_handler("BillOrder", batch=True)
async def bill(session: AsyncSession, event: OrderPriced) -> None:
    assert event.currency == "EUR"
    await session.execute(insert(effects).values(what=f"bill {event.order}"))
