"""Handlers of the consumer's outages: one effect for each message, handled one by one or many in a transaction.

No effect is unique in the database, so that one which happened twice can be seen.
"""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import Message, event, inbox_handler
from tests.acceptance.shop import GATE, GATED, Effect


@event("SaleMade")
@dataclass(frozen=True)
class SaleMade:
    number: int


@event("StockMoved")
@dataclass(frozen=True)
class StockMoved:
    number: int


@inbox_handler("BookSale")
async def book_sale(session: AsyncSession, event: SaleMade, message: Message) -> None:
    await write(session, event.number, message)


@inbox_handler("CountStock", batch=True)
async def count_stock(session: AsyncSession, event: StockMoved, message: Message) -> None:
    await write(session, event.number, message)


async def write(session: AsyncSession, number: int, message: Message) -> None:
    """The effect, and then the gate."""
    session.add(Effect(order_id=number, message_id=message.id))
    await session.flush()
    if number % 5 == GATED:
        await session.execute(select(func.pg_advisory_xact_lock_shared(GATE)))
