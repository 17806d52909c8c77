"""An order: its columns, and the one place with the rules for its states.

new ──pay──▶ paying ──charged──▶ paid
"""

from decimal import Decimal
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import BigInteger, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

MONEY = r"([1-9][0-9]{0,7}(\.[0-9]{1,2})?|0\.0[1-9]|0\.[1-9][0-9]?)"
"""More than nothing, less than a hundred million, at most two places: a regular expression for the whole text."""
NAME = r"[^\x00-\x1f\x7f]{1,200}"
"""One line."""


class Status(StrEnum):
    NEW = "new"
    PAYING = "paying"
    PAID = "paid"


MOVES = {
    "change": {Status.NEW: Status.NEW},
    "pay": {Status.NEW: Status.PAYING, Status.PAYING: Status.PAYING, Status.PAID: Status.PAID},
    "charged": {Status.PAYING: Status.PAID, Status.PAID: Status.PAID},
}


class Refused(Exception):
    """The order does not allow this."""


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    user: Mapped[str] = mapped_column(Text, index=True)
    customer: Mapped[str] = mapped_column(Text)
    cents: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(default=Status.NEW)
    version: Mapped[int] = mapped_column()

    __mapper_args__: ClassVar = {"version_id_col": version}

    @property
    def total(self) -> Decimal:
        return Decimal(self.cents).scaleb(-2)

    def change(self, customer: str) -> None:
        self._move("change")
        self.customer = customer

    def pay(self, amount: Decimal) -> bool:
        """Whether the card is to be charged now; False: it is, or was."""
        if amount != self.total:
            raise Refused(f"order {self.id} is over {self.total}, not over {amount}")
        return self._move("pay")

    def charged(self) -> bool:
        return self._move("charged")

    def _move(self, action: str) -> bool:
        status = MOVES[action].get(Status(self.status))
        if status is None:
            raise Refused(f"order {self.id} is {self.status}, which does not allow {action!r}")
        moved, self.status = status != self.status, status
        return moved

    def shown(self) -> dict[str, object]:
        return {"order_id": self.id, "customer": self.customer, "total": str(self.total), "status": self.status}


def order_number(text: str) -> int | None:
    """The number in a path, if it is one that an order could have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
