"""Show the orders: `python -m orders.show`, or `--wait` until each has its invoice (exit code 1 after a minute)."""

import argparse
import sys
import time

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from orders.models import Order, connect


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m orders.show", description=__doc__)
    parser.add_argument("--wait", action="store_true", help="until each has its invoice")
    engine = connect()
    return wait(engine) if parser.parse_args().wait else show(engine)


def wait(engine: Engine) -> int:
    deadline = time.monotonic() + 60
    with Session(engine) as session:
        while missing := session.scalar(select(func.count()).where(Order.invoice.is_(None))):
            if time.monotonic() > deadline:
                print(f"orders: {missing} still without invoice", file=sys.stderr)
                return 1
            session.rollback()
            time.sleep(0.1)
        print(f"orders: {session.scalar(select(func.count(Order.id)))}, each with its invoice")
    return 0


def show(engine: Engine) -> int:
    print(f"{'order':>5}  {'total':>8}  {'status':8}  {'invoice':9}  {'OrderPlaced':36}  invoice caused by")
    with Session(engine) as session:
        for order in session.scalars(select(Order).order_by(Order.id)):
            state = f"{order.id:>5}  {order.total:>8}  {order.status:8}  {order.invoice or '-':9}"
            print(f"{state}  {order.message_id}  {order.caused_by or '-'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
