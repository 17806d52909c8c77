"""`assert_order_does_not_matter`: a handler that takes the last one, and one that takes the newest."""

from dataclasses import dataclass

import pytest
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import ConfigurationError, Retry, event, inbox_handler
from outboxkit.testing import assert_order_does_not_matter


class Tables(DeclarativeBase): ...


class Price(Tables):
    __tablename__ = "prices"
    sku: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    version: Mapped[int]


class Entry(Tables):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


@event("PriceChanged")
@dataclass(frozen=True)
class PriceChanged:
    sku: str
    cents: int
    version: int


@inbox_handler("wrong.SetPrice")
def set_any_price(session: Session, event: PriceChanged) -> None:
    session.merge(Price(sku=event.sku, cents=event.cents, version=event.version))


@inbox_handler("right.SetPrice")
def set_price(session: Session, event: PriceChanged) -> None:
    row = insert(Price).values(sku=event.sku, cents=event.cents, version=event.version)
    newer = {"cents": row.excluded.cents, "version": row.excluded.version}
    where = row.excluded.version > Price.version
    session.execute(row.on_conflict_do_update(index_elements=[Price.sku], set_=newer, where=where))


@inbox_handler("right.Note")
def note(session: Session, event: PriceChanged) -> None:
    session.add(Entry(cents=event.cents))


@inbox_handler("right.Wait")
def wait(session: Session, event: PriceChanged) -> None:
    price = session.get(Price, event.sku, with_for_update=True) or Price(sku=event.sku, version=0)
    if event.version > price.version + 1:
        raise Retry("too early")
    price.cents, price.version = event.cents, event.version
    session.add(price)


EVENTS = [PriceChanged("lamp", 100 + version, version) for version in (1, 2, 3)]


@pytest.fixture
def shop(engine: Engine) -> Engine:
    Tables.metadata.create_all(engine)
    return engine


def test_the_last_one_wins(shop: Engine):
    with pytest.raises(AssertionError) as caught:
        assert_order_does_not_matter([set_any_price], EVENTS, engine=shop)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the order of the events matters"
    assert lines[3:6] == [
        "  prices",
        "    - sku='lamp', cents=103, version=3",
        "    + sku='lamp', cents=102, version=2",
    ]


def test_the_newest_one_wins_and_a_row_for_each_and_one_that_waits(shop: Engine):
    assert_order_does_not_matter([set_price, note], EVENTS, engine=shop)
    assert_order_does_not_matter([wait], EVENTS, engine=shop)
    with Session(shop) as session:
        assert session.query(Price).count() == 0


def test_more_events_than_orders(shop: Engine):
    events = [PriceChanged("lamp", 100 + version, version) for version in range(1, 6)]
    assert_order_does_not_matter([set_price], events, engine=shop)


def test_events_without_another_order_or_a_handler_are_refused(shop: Engine):
    with pytest.raises(ConfigurationError, match="1 events have no other order: give two or more"):
        assert_order_does_not_matter([note], EVENTS[:1], engine=shop)
    with pytest.raises(ConfigurationError, match="none of the handlers handles 'PriceChanged': give them all"):
        assert_order_does_not_matter([], EVENTS, engine=shop)
    assert_order_does_not_matter(note, EVENTS[:2], engine=shop)
