"""The events of orders, as far as the read model needs them. No code is shared with orders."""

from decimal import Decimal

import msgspec

from outboxkit import event


@event("OrderPlaced")
class OrderPlaced(msgspec.Struct, frozen=True):
    customer: str
    total: Decimal


@event("OrderCancelled")
class OrderCancelled(msgspec.Struct, frozen=True):
    customer: str
    total: Decimal
