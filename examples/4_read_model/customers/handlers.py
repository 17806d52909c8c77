"""The handlers that keep the read model: sums, which do not depend on the order of the messages."""

from decimal import Decimal

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from customers.events import OrderCancelled, OrderPlaced
from customers.models import Customer
from outboxkit import inbox_handler


@inbox_handler("customers.CountPlaced")
def count_placed(session: Session, event: OrderPlaced) -> None:
    count(session, event.customer, 1, event.total)


@inbox_handler("customers.CountCancelled")
def count_cancelled(session: Session, event: OrderCancelled) -> None:
    count(session, event.customer, -1, -event.total)


def count(session: Session, customer: str, orders: int, total: Decimal) -> None:
    """Adding up is safe, because the inbox lets each message through once."""
    row = insert(Customer).values(name=customer, orders=orders, total=total)
    added = {"orders": Customer.orders + row.excluded.orders, "total": Customer.total + row.excluded.total}
    session.execute(row.on_conflict_do_update(index_elements=[Customer.name], set_=added))
