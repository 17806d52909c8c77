"""`outbox.add` in every kind of session: the row is there after the commit, and only then."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import outboxkit
from outboxkit import ids, outbox, tables

KINDS = (Session, scoped_session, AsyncSession, async_scoped_session)


@outboxkit.event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
async def session(request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine) -> AsyncIterator[Any]:
    match request.param.__name__:
        case "Session":
            made: Any = Session(engine)
        case "scoped_session":
            made = scoped_session(sessionmaker(engine))
        case "AsyncSession":
            made = AsyncSession(async_engine)
        case _:
            made = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    yield made
    await done(made.close())


async def done(result: Any) -> Any:
    """The result of a session's method, sync or async."""
    return await result if inspect.isawaitable(result) else result


def numbers(engine: Engine) -> list[bytes]:
    with engine.connect() as connection:
        return list(connection.scalars(select(tables.outbox.c.payload).order_by(tables.outbox.c.position)))


async def test_expire_all_loses_nothing(session: Any, engine: Engine):
    outbox.add(session, Ordered(1))
    session.expire_all()
    await done(session.commit())
    assert numbers(engine) == [b'{"number":1}']


async def test_positions_follow_the_calls_whatever_is_added(session: Any, engine: Engine):
    later = datetime.now(UTC) + timedelta(days=1)
    outbox.add(session, Ordered(0))
    outbox.add_all(session, [Ordered(number) for number in range(1, 1200)], deliver_at=later)
    outbox.add(session, Ordered(1200), message_id=ids.derive(1200), dedup=True)
    await done(session.flush())
    outbox.add(session, Ordered(1201), expires_at=later)
    savepoint = await done(session.begin_nested())
    outbox.add_all(session, [Ordered(number) for number in range(1202, 1205)])
    await done(savepoint.commit())
    outbox.add(session, Ordered(1205))
    await done(session.commit())
    assert numbers(engine) == [b'{"number":%d}' % number for number in range(1206)]


def test_a_thousand_rows_are_one_statement(pg_engine: Engine):
    """Counted where they arrive: a statement trigger in the database, whose sequence no rollback takes back."""
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SEQUENCE inserts"))
        connection.execute(
            text(
                "CREATE FUNCTION count_insert() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM nextval(''inserts''); RETURN NULL; END'"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER count_insert AFTER INSERT ON outboxkit_outbox "
                "FOR EACH STATEMENT EXECUTE FUNCTION count_insert()"
            )
        )
    sent: list[str] = []
    event.listen(pg_engine, "before_cursor_execute", lambda _, __, statement, *___: sent.append(statement))
    with Session(pg_engine) as session, session.begin():
        outbox.add_all(session, [Ordered(number) for number in range(1000)])
    assert len(sent) == 1
    with pg_engine.connect() as connection:
        assert connection.execute(text("SELECT last_value FROM inserts")).scalar_one() == 1


async def test_a_thousand_rows_of_an_async_session_are_one_statement(async_pg_engine: AsyncEngine):
    sent: list[tuple[int, bool]] = []

    @event.listens_for(async_pg_engine.sync_engine, "before_cursor_execute")
    def _listen(*given: Any) -> None:
        sent.append((len(given[3]["message_id"]), given[5]))

    async with AsyncSession(async_pg_engine) as session, session.begin():
        outbox.add_all(session, [Ordered(number) for number in range(1000)])
    assert sent == [(1000, False)]
