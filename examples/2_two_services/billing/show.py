"""Show the invoices: `python -m billing.show`."""

from decimal import Decimal

from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from billing.models import Invoice, connect


def main() -> None:
    sums = select(func.count(), func.count(distinct(Invoice.order_id)), func.sum(Invoice.amount)).select_from(Invoice)
    with Session(connect()) as session:
        invoices, orders, amount = session.execute(sums).one()
    print(f"billing: {invoices} invoices for {orders} orders over {amount or Decimal(0)}")


if __name__ == "__main__":
    main()
