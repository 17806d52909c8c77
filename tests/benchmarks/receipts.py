"""What the consumers that are compared do with a message: one row in a table of the business."""

from dataclasses import dataclass

from sqlalchemy import BigInteger, Identity
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import event, inbox_handler
from tests.benchmarks.raw_publisher import TYPE


class Model(DeclarativeBase):
    """The tables of the business."""


class Receipt(Model):
    __tablename__ = "benchmark_receipt"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    subject: Mapped[str]


@event(TYPE)
@dataclass(frozen=True)
class Benchmarked:
    pad: str


async def write_receipt(session: AsyncSession, event: Benchmarked) -> None:
    """What every consumer does with a message."""
    session.add(Receipt(subject=event.pad[:20]))


@inbox_handler("one")
async def one(session: AsyncSession, event: Benchmarked) -> None:
    """Each message in a transaction of its own."""
    await write_receipt(session, event)


@inbox_handler("one")
def one_in_thread(session: Session, event: Benchmarked) -> None:
    """Each message in a transaction of its own, in a thread."""
    session.add(Receipt(subject=event.pad[:20]))


@inbox_handler("many", batch=True)
async def many(session: AsyncSession, event: Benchmarked) -> None:
    """Many messages in one transaction."""
    await write_receipt(session, event)
