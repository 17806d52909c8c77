"""The handler of orders for an invoice that billing has issued."""

from sqlalchemy.ext.asyncio import AsyncSession

from orders.events import InvoiceIssued
from orders.models import Order
from outboxkit import Message, inbox_handler


@inbox_handler("orders.RecordInvoice")
async def record_invoice(session: AsyncSession, event: InvoiceIssued, message: Message) -> None:
    order = await session.get_one(Order, event.order_id)
    order.status, order.invoice, order.caused_by = "invoiced", event.invoice, message.causation_id
