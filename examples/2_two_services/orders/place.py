"""Place orders: `python -m orders.place 10`."""

import argparse
from decimal import Decimal

from sqlalchemy.orm import Session

from orders.events import OrderPlaced
from orders.models import Order, connect
from outboxkit import outbox


def place(session: Session, total: Decimal) -> Order:
    order = Order(total=total)
    session.add(order)
    session.flush()  # the database gives it its id
    message = outbox.add(session, OrderPlaced(order.id, total), key=f"order-{order.id}")
    order.message_id = message.id
    return order


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m orders.place", description=__doc__)
    parser.add_argument("count", type=int, help="how many")
    count = parser.parse_args().count
    totals = [Decimal("19.90") * number for number in range(1, count + 1)]
    engine = connect()
    for total in totals:
        with Session(engine) as session, session.begin():
            place(session, total)
    print(f"orders: placed {count} over {sum(totals, Decimal(0))}")


if __name__ == "__main__":
    main()
