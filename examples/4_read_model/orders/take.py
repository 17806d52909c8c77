"""Take orders, and cancel every fifth of them: `python -m orders.take 20`."""

import argparse
from decimal import Decimal

from sqlalchemy.orm import Session

from orders.events import OrderCancelled, OrderPlaced
from orders.models import Order, connect
from outboxkit import outbox

CUSTOMERS = ("ann", "bob", "cy")


def place(session: Session, customer: str, total: Decimal) -> Order:
    order = Order(customer=customer, total=total)
    session.add(order)
    session.flush()  # the database gives it its id
    outbox.add(session, OrderPlaced(order.id, customer, total), key=f"order-{order.id}")
    return order


def cancel(session: Session, order: Order) -> None:
    order.status = "cancelled"
    outbox.add(session, OrderCancelled(order.id, order.customer, order.total), key=f"order-{order.id}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m orders.take", description=__doc__)
    parser.add_argument("count", type=int, help="how many")
    count = parser.parse_args().count
    with Session(connect(), expire_on_commit=False) as session:
        for number in range(1, count + 1):
            with session.begin():
                order = place(session, CUSTOMERS[number % len(CUSTOMERS)], Decimal("1.10") * number)
            if number % 5 == 0:
                with session.begin():
                    cancel(session, order)
    print(f"orders: placed {count}, cancelled {count // 5}")


if __name__ == "__main__":
    main()
