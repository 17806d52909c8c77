"""The table of billing. `python -m billing.models` creates it."""

from datetime import date
from decimal import Decimal

from sqlalchemy import Engine, Numeric, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outboxkit.runtime import settings


class Base(DeclarativeBase): ...


class Invoice(Base):
    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]  # no unique constraint: the inbox alone keeps an order from getting two
    amount: Mapped[Decimal] = mapped_column(Numeric(12, 2))
    due_on: Mapped[date]

    @property
    def number(self) -> str:
        return f"INV-{self.id:05}"


def connect() -> Engine:
    return create_engine(settings.load().database_url.get_secret_value())


if __name__ == "__main__":
    Base.metadata.create_all(connect())
    print("billing: table ready")
