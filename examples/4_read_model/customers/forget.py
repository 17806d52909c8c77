"""Empty the read model, to build it anew: `python -m customers.forget`. Its consumer must not run meanwhile."""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from customers import handlers
from customers.models import Customer, connect
from outboxkit import inbox
from outboxkit.tables import inbox as remembered


def main() -> None:
    names = [handler.name for handler in inbox.handlers_in([handlers])]
    with Session(connect()) as session, session.begin():  # both, or neither: what is forgotten is to be counted again
        session.execute(delete(Customer))
        session.execute(delete(remembered).where(remembered.c.handler.in_(names)))
    print(f"customers: forgot everything that {' and '.join(names)} had done")


if __name__ == "__main__":
    main()
