"""An application that adds a message and handles it twice, with the core alone: it prints what became of it."""

from dataclasses import dataclass

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import effects, event, inbox, inbox_handler, metadata, outbox
from outboxkit.http import ledger, preconditions
from outboxkit.http.asgi import IdempotencyMiddleware

assert all((ledger, preconditions, IdempotencyMiddleware))


@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int


handled = []


@inbox_handler("billing.SendReceipt")
def send_receipt(session: Session, event: OrderConfirmed) -> None:
    handled.append(event.order_id)


engine = create_engine("sqlite://")
metadata.create_all(engine)
with Session(engine) as session, session.begin():
    message = outbox.add(session, OrderConfirmed(7), key="order-7")
    outcomes = [inbox.run_once(session, message, send_receipt).value for _ in range(2)]
receipt = effects.once(sessionmaker(engine), "receipt-7", lambda: "sent", on_unknown="skip")
with engine.connect() as connection:
    rows = connection.scalar(select(func.count()).select_from(metadata.tables["outboxkit_outbox"]))
print(*outcomes, handled, rows, receipt.result)
