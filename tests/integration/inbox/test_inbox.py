"""`inbox.run_once` on real transactions: once, whoever else tries at the same time."""

from dataclasses import dataclass

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.orm import Session

from outboxkit import Message, event, inbox, inbox_handler, outbox, tables

EFFECTS = Table(
    "effect", MetaData(), Column("id", Integer, primary_key=True), Column("order_id", Integer), Column("by", String(50))
)


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@event("Billed")
@dataclass(frozen=True)
class Billed:
    number: int


@inbox_handler("BillOrder")
def bill(session: Session, event: Ordered) -> None:
    session.execute(insert(EFFECTS).values(order_id=event.number, by="sync"))
    outbox.add(session, Billed(event.number))


@inbox_handler("FailOrder")
def fail(session: Session, event: Ordered) -> None:
    bill(session, event)
    session.flush()
    raise ValueError("failed")


@pytest.fixture(autouse=True)
def _effects(engine: Engine) -> None:
    EFFECTS.metadata.create_all(engine)


def message(id_: str = "m", **properties: object) -> Message:
    return Message(id=id_, type="Ordered", payload=b'{"number":7}', **properties)  # type: ignore[arg-type]


def effects(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(EFFECTS)).scalar_one()


def test_a_failure_takes_the_inbox_row_back(engine: Engine):
    for _ in range(2):
        with pytest.raises(ValueError, match="failed"), Session(engine) as session, session.begin():
            inbox.run_once(session, message(), fail)
    with engine.connect() as connection:
        assert [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (tables.inbox, tables.outbox, EFFECTS)
        ] == [0, 0, 0]
