"""The events of orders that billing reads, and those of billing. No code is shared with orders."""

from datetime import date
from decimal import Decimal

import msgspec

from outboxkit import event


@event("OrderPlaced")
class OrderPlaced(msgspec.Struct, frozen=True):
    order_id: int
    total: Decimal


@event("InvoiceIssued")
class InvoiceIssued(msgspec.Struct, frozen=True):
    order_id: int
    invoice: str
    amount: Decimal
    due_on: date
