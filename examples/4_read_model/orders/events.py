"""The events of orders, with enough in them for a reader to need nothing else."""

from dataclasses import dataclass
from decimal import Decimal

from outboxkit import event


@event("OrderPlaced")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    customer: str
    total: Decimal


@event("OrderCancelled")
@dataclass(frozen=True)
class OrderCancelled:
    order_id: int
    customer: str
    total: Decimal
