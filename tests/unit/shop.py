"""A small shop: one event of each kind of class, and what the tests compare."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from uuid import UUID

import attrs
import msgspec
import pydantic
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, select

from outboxkit import Message, event

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

metadata = MetaData()
effects = Table("effects", metadata, Column("id", Integer, primary_key=True), Column("what", String))
"""The application's own table: what a handler or a request has done."""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    size: Size = Size.SMALL


@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int
    total: Decimal
    at: datetime | None = None
    customer: UUID | None = None
    colour: Colour = Colour.RED
    lines: list[Line] = field(default_factory=list)


@event("ParcelSent")
@attrs.frozen
class ParcelSent:
    parcel_id: UUID
    on: date
    until: time | None = None


@event("StockChanged")
class StockChanged(msgspec.Struct, frozen=True):
    sku: str
    amount: Decimal
    by_colour: dict[str, int] = {}


class Address(pydantic.BaseModel):
    street: str
    since: datetime


@event("CustomerMoved")
class CustomerMoved(pydantic.BaseModel):
    customer: UUID
    to: Address
    colour: Colour = Colour.RED
    credit: Decimal = Decimal(0)


def message(**more: object) -> Message:
    """A message as a relay finds it, made at NOW."""
    known = {"id": "m-1", "type": "OrderConfirmed", "payload": b'{"order_id":7,"total":"9.50"}', "created_at": NOW}
    return Message(**(known | more))


def rows(database_url: str, table: Table) -> list[dict[str, object]]:
    """All rows of a table, read on a connection of their own: what is committed."""
    engine = create_engine(database_url)
    try:
        with engine.connect() as connection:
            order = list(table.primary_key.columns)
            return [dict(row._mapping) for row in connection.execute(select(table).order_by(*order))]
    finally:
        engine.dispose()


def count(database_url: str, table: Table) -> int:
    """How many rows are committed."""
    engine = create_engine(database_url)
    try:
        with engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()
    finally:
        engine.dispose()
