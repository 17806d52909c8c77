"""The handler of billing for a new order: an invoice and its event, in one transaction."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from billing.events import InvoiceIssued, OrderPlaced
from billing.models import Invoice
from outboxkit import inbox_handler, outbox


@inbox_handler("billing.IssueInvoice")
def issue_invoice(session: Session, event: OrderPlaced) -> None:
    due_on = datetime.now(UTC).date() + timedelta(days=30)
    invoice = Invoice(order_id=event.order_id, amount=event.total, due_on=due_on)
    session.add(invoice)
    session.flush()  # the database gives it its number
    issued = InvoiceIssued(invoice.order_id, invoice.number, invoice.amount, invoice.due_on)
    outbox.add(session, issued, key=f"order-{event.order_id}")
