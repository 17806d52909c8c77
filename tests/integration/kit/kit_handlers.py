"""Wrong handlers that the test kit has to catch, each with a right twin that it must not accuse."""

import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import DateTime, ForeignKey, Numeric, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import Message, Reject, Retry, event, inbox_handler, outbox


class Tables(DeclarativeBase): ...


class Customer(Tables):
    __tablename__ = "customers"
    name: Mapped[str] = mapped_column(primary_key=True)
    orders: Mapped[int]
    updated_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), default=lambda: datetime.now(UTC), onupdate=lambda: datetime.now(UTC)
    )


class Account(Tables):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    orders: Mapped[int]
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Receipt(Tables):
    __tablename__ = "receipts"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2))
    number: Mapped[int | None]
    made_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.current_timestamp())
    due_on: Mapped[date | None]


class Note(Tables):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


class Token(Tables):
    __tablename__ = "tokens"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    receipt_id: Mapped[int] = mapped_column(ForeignKey("receipts.id"))


class Invoice(Tables):
    __tablename__ = "invoices"
    order_id: Mapped[int] = mapped_column(primary_key=True)


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    order_id: int
    customer: str
    total: Decimal


@event("Booked")
@dataclass(frozen=True)
class Booked:
    order_id: int
    receipt: str


ORDERED = Ordered(7, "ann", Decimal("19.90"))


def add_receipt(session: Session, event: Ordered, **values: Any) -> Receipt:
    receipt = Receipt(order_id=event.order_id, total=event.total, **values)
    session.add(receipt)
    return receipt


# Rows and messages, as they are to be.


@inbox_handler("right.ClockInWords")
def right_clock_in_words(session: Session, event: Ordered) -> None:
    session.add(Note(note=f"paid on {datetime.now(UTC):%d.%m.%Y at %H:%M:%S}"))


@inbox_handler("right.Book")
def right_book(session: Session, event: Ordered) -> None:
    receipt = add_receipt(session, event, due_on=datetime.now(UTC).date() + timedelta(days=30))
    session.flush()
    session.add(Token(receipt_id=receipt.id))
    outbox.add(session, Booked(event.order_id, f"R-{receipt.id:05}"), key=f"order-{event.order_id}")


@inbox_handler("right.BookAsync")
async def right_book_async(session: AsyncSession, event: Ordered, message: Message) -> None:
    receipt = Receipt(order_id=event.order_id, total=event.total)
    session.add(receipt)
    await session.flush()
    session.add(Token(receipt_id=receipt.id))
    outbox.add(session, Booked(event.order_id, f"R-{receipt.id}"), deliver_at=datetime.now(UTC) + timedelta(hours=1))


# A sum by hand.


@inbox_handler("wrong.SumByHand")
def wrong_sum_by_hand(session: Session, event: Ordered) -> None:
    customer = session.get(Customer, event.customer)
    if customer is not None:
        customer.orders += 1


@inbox_handler("wrong.SumByHandInSql")
def wrong_sum_in_sql(session: Session, event: Ordered) -> None:
    orders = session.execute(text("SELECT orders FROM customers WHERE name = :name"), {"name": event.customer}).scalar()
    if orders is not None:
        values = {"orders": orders + 1, "name": event.customer}
        session.execute(text("UPDATE customers SET orders = :orders WHERE name = :name"), values)


@inbox_handler("wrong.SumOfTwoOrders")
def wrong_sum_of_two_orders(session: Session, event: Ordered) -> None:
    """Two messages about one order never meet: the second one fails."""
    customer = session.get_one(Customer, event.customer)
    session.add(Invoice(order_id=event.order_id))
    customer.orders += 1


@inbox_handler("wrong.SumAfterTheFirst")
def wrong_sum_after_the_first(session: Session, event: Ordered) -> None:
    day = session.get(Customer, "today")
    if day is None:
        first = insert(Customer).values(name="today", orders=1, updated_at=datetime.now(UTC))
        more = {"orders": Customer.orders + 1}
        session.execute(first.on_conflict_do_update(index_elements=["name"], set_=more))
    else:
        day.orders += 1


@inbox_handler("wrong.SellTheLast")
def wrong_sell_the_last(session: Session, event: Ordered) -> None:
    """The second order of the last one fails, unless both look before one of them commits."""
    if session.scalar(select(func.count()).select_from(Receipt)):
        raise Reject("sold out")
    add_receipt(session, event)


@inbox_handler("right.SellTheLast")
def right_sell_the_last(session: Session, event: Ordered) -> None:
    session.get_one(Customer, event.customer, with_for_update=True)
    wrong_sell_the_last(session, event)


@inbox_handler("right.SumBySql")
def right_sum_by_sql(session: Session, event: Ordered) -> None:
    session.execute(update(Customer).where(Customer.name == event.customer).values(orders=Customer.orders + 1))


@inbox_handler("right.SumByLock")
def right_sum_by_lock(session: Session, event: Ordered) -> None:
    session.get_one(Customer, event.customer, with_for_update=True).orders += 1


@inbox_handler("right.SumByVersion")
def right_sum_by_version(session: Session, event: Ordered) -> None:
    account = session.get(Account, event.customer)
    if account is not None:
        account.orders += 1


# Look, then insert.


@inbox_handler("wrong.Upsert")
def wrong_upsert(session: Session, event: Ordered) -> None:
    if session.get(Invoice, event.order_id) is None:
        session.add(Invoice(order_id=event.order_id))


@inbox_handler("right.Upsert")
def right_upsert(session: Session, event: Ordered) -> None:
    session.execute(insert(Invoice).values(order_id=event.order_id).on_conflict_do_nothing())


@inbox_handler("right.UpsertInSavepoint")
def right_upsert_in_savepoint(session: Session, event: Ordered) -> None:
    with suppress(IntegrityError), session.begin_nested():
        session.add(Invoice(order_id=event.order_id))


# Errors.


@inbox_handler("wrong.Swallow")
def wrong_swallow(session: Session, event: Ordered) -> None:
    with suppress(Exception), session.begin_nested():
        session.add(Invoice(order_id=event.order_id))


@inbox_handler("wrong.SwallowPlain")
def wrong_swallow_plain(session: Session, event: Ordered) -> None:
    with suppress(Exception):
        session.execute(insert(Invoice).values(order_id=event.order_id).on_conflict_do_nothing())


@inbox_handler("right.NoteFailure")
def right_note_failure(session: Session, event: Ordered) -> None:
    try:
        with session.begin_nested():
            session.execute(insert(Invoice).values(order_id=event.order_id).on_conflict_do_nothing())
    except Exception:  # noqa: BLE001
        outbox.add(session, Booked(event.order_id, "failed"))


@inbox_handler("right.Reraise")
def right_reraise(session: Session, event: Ordered) -> None:
    try:
        session.execute(insert(Invoice).values(order_id=event.order_id).on_conflict_do_nothing())
    except Exception as error:
        raise Retry("later") from error


# What nobody awaits, and what fails only when there are rows.


async def write_receipt(session: AsyncSession, event: Ordered) -> None:
    session.add(Receipt(order_id=event.order_id, total=event.total))


@inbox_handler("wrong.ForgottenAwait")
async def wrong_forgotten_await(session: AsyncSession, event: Ordered) -> None:
    session.add(Invoice(order_id=event.order_id))
    write_receipt(session, event)  # type: ignore[unused-coroutine]


@inbox_handler("wrong.CaughtWithoutSavepoint")
def wrong_caught_without_savepoint(session: Session, event: Ordered) -> None:
    try:
        session.add(Invoice(order_id=event.order_id))
        session.flush()
    except IntegrityError:
        session.rollback()


WRONG = [each for name, each in list(globals().items()) if name.startswith("wrong_")]
RIGHT = [each for name, each in list(globals().items()) if name.startswith("right_")]
