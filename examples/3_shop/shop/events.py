"""What the shop asks of the payment provider, and what comes back."""

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
