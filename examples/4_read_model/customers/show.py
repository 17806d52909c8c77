"""Show the read model: `python -m customers.show`."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from customers.models import Customer, connect


def main() -> None:
    with Session(connect()) as session:
        for customer in session.scalars(select(Customer).order_by(Customer.name)):
            print(f"{customer.name:5} {customer.orders:4} orders {customer.total:>9}")


if __name__ == "__main__":
    main()
