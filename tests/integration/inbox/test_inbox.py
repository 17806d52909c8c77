"""`inbox.run_once` on real transactions: once, whoever else tries at the same time."""

from dataclasses import dataclass

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import DecodeError, Message, Outcome, TransactionRequired, event, inbox, inbox_handler, outbox, tables

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


@inbox_handler("BillOrderAsync")
async def bill_async(session: AsyncSession, event: Ordered, message: Message) -> None:
    await session.execute(insert(EFFECTS).values(order_id=event.number, by="async"))
    outbox.add(session, Billed(event.number), headers={"tenant": "b"})


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


def test_a_sync_handler_runs_once(engine: Engine):
    for expected in (Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.DUPLICATE):
        with Session(engine) as session, session.begin():
            assert inbox.run_once(session, message(), bill) is expected
    assert effects(engine) == 1


async def test_an_async_handler_runs_once(engine: Engine, async_engine: AsyncEngine):
    for expected in (Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.DUPLICATE):
        async with AsyncSession(async_engine) as session, session.begin():
            assert await session.run_sync(inbox.run_once, message(), bill_async) is expected
    assert effects(engine) == 1


async def test_a_sync_handler_runs_in_an_async_session(engine: Engine, async_engine: AsyncEngine):
    for expected in (Outcome.PROCESSED, Outcome.DUPLICATE):
        async with AsyncSession(async_engine) as session, session.begin():
            assert await session.run_sync(inbox.run_once, message(), bill) is expected
    assert effects(engine) == 1


def test_two_handlers_and_two_messages_are_four_effects(engine: Engine):
    @inbox_handler("BillOrderAgain")
    def bill_again(session: Session, event: Ordered) -> None:
        bill(session, event)

    for handler in (bill, bill_again):
        for id_ in ("a", "b", "a"):
            with Session(engine) as session, session.begin():
                inbox.run_once(session, message(id_), handler)
    assert effects(engine) == 4


def test_a_failure_takes_the_inbox_row_back(engine: Engine):
    for _ in range(2):
        with pytest.raises(ValueError, match="failed"), Session(engine) as session, session.begin():
            inbox.run_once(session, message(), fail)
    with engine.connect() as connection:
        assert [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (tables.inbox, tables.outbox, EFFECTS)
        ] == [0, 0, 0]


def test_a_payload_of_another_kind_leaves_nothing(engine: Engine):
    with Session(engine) as session, session.begin():
        with pytest.raises(DecodeError, match="number"):
            inbox.run_once(session, Message(id="m", type="Ordered", payload=b"{}"), bill)
        assert session.execute(select(tables.inbox)).all() == []


async def test_what_a_handler_adds_is_caused_by_its_message(engine: Engine, async_engine: AsyncEngine):
    cause = message("cause", correlation_id="story", headers={"traceparent": "00-1-2-01", "tenant": "a"})
    with Session(engine) as session, session.begin():
        inbox.run_once(session, cause, bill)
    async with AsyncSession(async_engine) as session, session.begin():
        await session.run_sync(inbox.run_once, cause, bill_async)
    with Session(engine) as session, session.begin():
        inbox.run_once(session, message("first of its story"), bill)
        outbox.add(session, Billed(0))
    with engine.connect() as connection:
        columns = tables.outbox.c
        asked = select(columns.correlation_id, columns.causation_id, columns.headers).order_by(columns.position)
        assert [tuple(row) for row in connection.execute(asked)] == [
            ("story", "cause", b'{"traceparent":"00-1-2-01"}'),
            ("story", "cause", b'{"traceparent":"00-1-2-01","tenant":"b"}'),
            ("first of its story", "first of its story", b"{}"),
            (None, None, b"{}"),
        ]


def test_outside_a_transaction_it_is_refused(engine: Engine):
    with Session(engine) as session, pytest.raises(TransactionRequired, match=r"session\.begin"):
        inbox.run_once(session, message(), bill)
    assert effects(engine) == 0
