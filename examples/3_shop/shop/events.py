"""The events between the shop and the payment provider: a charge, and the answer to it."""

from dataclasses import dataclass
from decimal import Decimal

from outboxkit import event


@event("ChargeCard", destination="payments", reply="CardCharged")
@dataclass(frozen=True)
class ChargeCard:
    order_id: int
    amount: Decimal


@event("CardCharged")
@dataclass(frozen=True)
class CardCharged:
    """The body of the provider's answer."""

    order_id: int
    amount: Decimal
    charge: str
