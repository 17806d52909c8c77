"""The read model: a row for each customer, as suits those who read. `python -m customers.models` creates its table."""

from decimal import Decimal

from sqlalchemy import Engine, Numeric, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outboxkit.runtime import settings


class Base(DeclarativeBase): ...


class Customer(Base):
    __tablename__ = "customers"

    name: Mapped[str] = mapped_column(primary_key=True)
    orders: Mapped[int]
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2))


def connect() -> Engine:
    return create_engine(settings.load().database_url.get_secret_value())


if __name__ == "__main__":
    Base.metadata.create_all(connect())
    print("customers: table ready")
