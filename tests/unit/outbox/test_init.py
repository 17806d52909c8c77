"""`outbox.add` with every kind of session: the row lives and dies with the caller's transaction."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit import EncodeError, ids, outbox, tables
from outboxkit.outbox import AnySession
from tests.unit.shop import NOW, OrderConfirmed, count, effects, message, rows

KINDS = ["Session", "scoped_session", "AsyncSession", "async_scoped_session"]


async def done(result: Any) -> Any:
    """The result of a session's method, whether the session is an async one or not."""
    return await result if inspect.isawaitable(result) else result


@pytest.fixture(params=KINDS)
async def session(
    request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine
) -> AsyncIterator[AnySession]:
    made: dict[str, Callable[[], Any]] = {
        "Session": lambda: Session(engine),
        "scoped_session": lambda: scoped_session(sessionmaker(engine)),
        "AsyncSession": lambda: AsyncSession(async_engine),
        "async_scoped_session": lambda: async_scoped_session(
            async_sessionmaker(async_engine), scopefunc=asyncio.current_task
        ),
    }
    opened = made[request.param]()
    yield opened
    await done(opened.close())


def order(number: int) -> OrderConfirmed:
    return OrderConfirmed(number, Decimal("9.50"))


def ids_in(database_url: str) -> list[object]:
    return [row["message_id"] for row in rows(database_url, tables.outbox)]


async def test_a_rollback_forgets_both(session: AnySession, database_url: str):
    await done(session.execute(insert(effects).values(what="order 7")))
    outbox.add(session, order(7))
    await done(session.rollback())
    outbox.add(session, order(8))
    await done(session.flush())
    await done(session.rollback())
    await done(session.commit())
    assert count(database_url, tables.outbox) == 0
    assert count(database_url, effects) == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_rollback_to_a_savepoint_forgets_what_was_added_since(
    session: AnySession, database_url: str, flushed: bool
):
    before = outbox.add(session, order(1))
    savepoint = await done(session.begin_nested())
    outbox.add(session, order(2))
    if flushed:
        await done(session.flush())
    await done(savepoint.rollback())
    after = outbox.add(session, order(3))
    await done(session.commit())
    assert ids_in(database_url) == [before.id, after.id]


async def test_a_released_savepoint_keeps_its_messages(session: AnySession, database_url: str):
    savepoint = await done(session.begin_nested())
    inside = outbox.add(session, order(2))
    await done(savepoint.commit())
    await done(session.commit())
    assert ids_in(database_url) == [inside.id]


async def test_adding_does_no_io(session: AnySession, engine: Engine, async_engine: AsyncEngine):
    said: list[str] = []
    for listened in (engine, async_engine.sync_engine):
        event.listen(listened, "before_cursor_execute", lambda *given: said.append(given[2]))
    outbox.add(session, order(1))
    outbox.add_all(session, [order(2), order(3)])
    assert said == []


async def test_one_bad_event_leaves_none_of_many(session: AnySession, database_url: str):
    with pytest.raises(EncodeError):
        outbox.add_all(session, [order(1), message(payload=b"x" * 2_000_000), order(2)])
    await done(session.commit())
    assert count(database_url, tables.outbox) == 0


async def test_add_all_gives_every_message_the_same_arguments(session: AnySession, database_url: str):
    added = outbox.add_all(
        session, [order(1), order(2)], key="order-1", headers={"a": 1}, topic="orders", correlation_id="c-1"
    )
    await done(session.commit())
    for row, sent in zip(rows(database_url, tables.outbox), added, strict=True):
        assert (row["key"], row["topic"], row["correlation_id"], row["headers"]) == (
            "order-1",
            "orders",
            "c-1",
            b'{"a":1}',
        )
        assert (sent.key, sent.topic, sent.correlation_id, sent.headers) == ("order-1", "orders", "c-1", {"a": 1})


def test_two_messages_may_have_one_id_and_both_are_sent(engine: Engine, database_url: str):
    given = ids.derive("order", 1)
    with Session(engine) as session, session.begin():
        outbox.add(session, order(1), message_id=given)
        outbox.add(session, order(1), message_id=given)
    assert ids_in(database_url) == [given, given]


def test_a_message_is_cancelled_in_the_transaction(engine: Engine, database_url: str):
    with Session(engine) as session, session.begin():
        kept, taken = outbox.add(session, order(1)), outbox.add(session, order(2))
    with Session(engine) as session:
        assert outbox.cancel(session, taken.id)
        assert not outbox.cancel(session, taken.id)
        session.rollback()
        assert ids_in(database_url) == [kept.id, taken.id]
        assert outbox.cancel(session, taken.id)
        session.commit()
    assert ids_in(database_url) == [kept.id]


@pytest.mark.parametrize("deliver_at", [None, NOW, datetime.now(UTC) + timedelta(days=1)])
def test_a_message_that_is_still_in_the_session_is_cancelled(
    engine: Engine, database_url: str, deliver_at: datetime | None
):
    with Session(engine) as session, session.begin():
        added = [outbox.add(session, order(number), deliver_at=deliver_at) for number in range(3)]
        assert outbox.cancel(session, added[1].id)
    assert ids_in(database_url) == [added[0].id, added[2].id]


def test_what_is_not_in_the_outbox_cannot_be_cancelled(engine: Engine):
    with scoped_session(sessionmaker(engine))() as session:
        assert outbox.cancel(session, ids.new()) is False


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


def test_an_id_is_in_the_outbox_once_at_a_time(engine: Engine, database_url: str):
    given = ids.derive("order", 1)
    for _ in range(2):
        with Session(engine) as session, session.begin():
            outbox.add(session, order(1), message_id=given, dedup=True)
            outbox.add(session, order(1), message_id=given, dedup=True)
    assert ids_in(database_url) == [given]
    with Session(engine) as session, session.begin():
        assert outbox.cancel(session, given)
        outbox.add(session, order(1), message_id=given, dedup=True)
    assert ids_in(database_url) == [given]


def test_dedup_leaves_others_alone(engine: Engine, database_url: str):
    first, second = ids.derive("order", 1), ids.derive("order", 2)
    with Session(engine) as session, session.begin():
        outbox.add(session, order(1), message_id=first)
        outbox.add(session, order(1), message_id=first, dedup=True)
        outbox.add(session, order(2), message_id=second)
        outbox.add(session, order(1), message_id=first, dedup=True)
        outbox.add(session, order(2), message_id=second)
    assert ids_in(database_url) == [first, first, second, second]
