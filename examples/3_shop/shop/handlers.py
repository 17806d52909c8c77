"""The two handlers of a card that was charged. An order is paid even while the mail server is away.

A handler is a `def` or an `async def`, whatever the web framework is.
"""

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import effects, inbox_handler
from shop.database import effect_sessions
from shop.events import CardCharged
from shop.mail import NOT_SENT, send
from shop.orders import Order


@inbox_handler("orders.MarkPaid")
def mark_paid(session: Session, event: CardCharged) -> None:
    order = session.get_one(Order, event.order_id, with_for_update=True)
    order.charged()


@inbox_handler("orders.SendReceipt")
async def send_receipt(session: AsyncSession, event: CardCharged) -> None:
    """Better no receipt than two: `skip` if a crash left open whether it was sent."""
    order = await session.get_one(Order, event.order_id)
    text = f"Dear {order.customer},\n\nthank you for {event.amount} (charge {event.charge}).\n"

    async def call() -> None:
        await send(f"order-{order.id}@example.com", "Your receipt", text)

    await effects.once(effect_sessions, call=call, on_unknown="skip", certain=NOT_SENT)
