"""The events of orders, and those of billing that orders reads. The contract between the two is the JSON."""

from dataclasses import dataclass
from decimal import Decimal

from outboxkit import event


@event("OrderPlaced")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    total: Decimal


@event("InvoiceIssued")
@dataclass(frozen=True)
class InvoiceIssued:
    """Billing sends more fields than these; what orders has no use for, it ignores."""

    order_id: int
    invoice: str
