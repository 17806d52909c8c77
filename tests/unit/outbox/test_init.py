"""`outbox.add` with every kind of session: the row lives and dies with the caller's transaction."""

import asyncio
from decimal import Decimal

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import EncodeError, outbox, tables
from tests.unit.shop import OrderConfirmed, count, message, rows


def order(number: int) -> OrderConfirmed:
    return OrderConfirmed(number, Decimal("9.50"))


def ids_in(database_url: str) -> list[object]:
    return [row["message_id"] for row in rows(database_url, tables.outbox)]


def test_adding_does_no_io(session: Session, engine: Engine, database_url: str):
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    outbox.add(session, order(1))
    outbox.add_all(session, [order(2), order(3)])
    session.expire_all()
    assert said == []
    session.commit()
    assert len(ids_in(database_url)) == 3


def test_one_bad_event_leaves_none_of_many(session: Session, database_url: str):
    with pytest.raises(EncodeError):
        outbox.add_all(session, [order(1), message(payload=b"x" * 2_000_000), order(2)])
    session.commit()
    assert count(database_url, tables.outbox) == 0


def test_add_all_gives_every_message_the_same_arguments(session: Session, database_url: str):
    added = outbox.add_all(
        session, [order(1), order(2)], key="order-1", headers={"a": 1}, topic="orders", correlation_id="c-1"
    )
    session.commit()
    for row, sent in zip(rows(database_url, tables.outbox), added, strict=True):
        assert (row["key"], row["topic"], row["correlation_id"], row["headers"]) == (
            "order-1",
            "orders",
            "c-1",
            b'{"a":1}',
        )
        assert (sent.key, sent.topic, sent.correlation_id, sent.headers) == ("order-1", "orders", "c-1", {"a": 1})


async def test_a_message_of_an_async_session_is_cancelled(async_engine: AsyncEngine, database_url: str):
    async with AsyncSession(async_engine) as session, session.begin():
        kept, taken = outbox.add(session, order(1)), outbox.add(session, order(2))
        assert await session.run_sync(outbox.cancel, taken.id)
    assert ids_in(database_url) == [kept.id]


async def test_an_async_session_is_told_how_to_cancel(async_engine: AsyncEngine):
    scoped = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    for wrong, session in ((AsyncSession(async_engine), "session"), (scoped, r"session\(\)")):
        with pytest.raises(TypeError, match=rf"await {session}\.run_sync\(outbox\.cancel, message_id\)"):
            outbox.cancel(wrong, "m-1")
    with pytest.raises(TypeError, match="found Engine"):
        outbox.cancel(async_engine.sync_engine, "m-1")
