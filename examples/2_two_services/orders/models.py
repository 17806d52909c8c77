"""The table of orders. `python -m orders.models` creates it."""

from decimal import Decimal

from sqlalchemy import Engine, Numeric, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outboxkit.runtime import settings


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2))
    status: Mapped[str] = mapped_column(default="placed")
    message_id: Mapped[str | None]  # of its OrderPlaced
    invoice: Mapped[str | None]
    caused_by: Mapped[str | None]  # the message that made billing issue the invoice


def connect() -> Engine:
    return create_engine(settings.load().database_url.get_secret_value())


if __name__ == "__main__":
    Base.metadata.create_all(connect())
    print("orders: table ready")
