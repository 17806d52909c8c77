"""A session that is closed with messages nobody committed: the warning names the line, and keeps quiet on purpose."""

import gc
import inspect
import warnings
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit import outbox, tables
from outboxkit.outbox import UncommittedMessages
from outboxkit.outbox.pending import _seen
from tests.unit.shop import OrderConfirmed, count, effects

pytestmark = pytest.mark.filterwarnings("error")  # which pyproject.toml makes an exception of
EVENT = OrderConfirmed(1, Decimal("9.50"))


@pytest.fixture(autouse=True)
def _forget_places() -> None:
    _seen.clear()


@pytest.fixture(params=["Session", "scoped_session", "AsyncSession", "async_scoped_session"])
def make(request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine) -> Callable[[], Any]:
    return {
        "Session": lambda: Session(engine),
        "scoped_session": lambda: scoped_session(sessionmaker(engine)),
        "AsyncSession": lambda: AsyncSession(async_engine),
        "async_scoped_session": lambda: async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: 1),
    }[request.param]


@pytest.fixture
async def session(make: Callable[[], Any]) -> AsyncIterator[Any]:
    opened = make()
    yield opened
    await done(opened.close())


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def used_in_a_block(session: Any, work: Callable[[Any], Any]) -> None:
    """Work inside `with` or `async with`."""
    opened = session() if isinstance(session, scoped_session | async_scoped_session) else session
    if isinstance(opened, AsyncSession):
        async with opened:
            await done(work(opened))
    else:
        with opened:
            work(opened)


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_forgotten_commit_is_warned_of_at_the_line_that_added(session: Any, flushed: bool, database_url: str):
    line = inspect.stack()[0].lineno + 1
    outbox.add(session, EVENT)
    if flushed:
        await done(session.flush())
    outbox.add(session, EVENT)
    with pytest.warns(UncommittedMessages, match="'OrderConfirmed' was added") as caught:
        await done(session.close())
    assert [(each.filename, each.lineno) for each in caught] == [(__file__, line)]
    assert count(database_url, tables.outbox) == 0


async def test_the_end_of_a_block_warns(session: Any):
    with pytest.warns(UncommittedMessages):
        await used_in_a_block(session, lambda opened: outbox.add_all(opened, [EVENT, EVENT]))


async def test_an_exception_is_a_reason(session: Any):
    def fail(opened: Any) -> None:
        outbox.add(opened, EVENT)
        raise KeyError

    with pytest.raises(KeyError):
        await used_in_a_block(session, fail)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_an_end_that_was_asked_for_is_none(session: Any, end: str):
    outbox.add(session, EVENT)
    await done(getattr(session, end)())
    await done(session.execute(select(1)))
    await done(session.close())


async def test_each_transaction_is_looked_at(session: Any):
    outbox.add(session, EVENT)
    await done(session.commit())
    outbox.add(session, EVENT)
    with pytest.warns(UncommittedMessages):
        await done(session.close())
    outbox.add(session, EVENT)
    await done(session.rollback())
    await done(session.close())


async def test_as_an_error_it_leaves_the_session_closed(session: Any, database_url: str):
    outbox.add(session, EVENT)
    with pytest.raises(UncommittedMessages):
        await done(session.close())
    outbox.add(session, EVENT)
    await done(session.commit())
    assert count(database_url, tables.outbox) == 1


@pytest.mark.parametrize("make", ["scoped_session", "async_scoped_session"], indirect=True)
async def test_remove_of_a_scoped_session_closes_it(make: Callable[[], Any]):
    opened = make()
    outbox.add(opened, EVENT)
    with pytest.warns(UncommittedMessages):
        await done(opened.remove())


def test_the_standard_filters_turn_it_off(engine: Engine):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncommittedMessages)
        with Session(engine) as session:
            outbox.add(session, EVENT)


def test_by_default_a_line_is_named_once(engine: Engine):
    add = [compile("outbox.add(session, EVENT)", file, "exec") for file in ("views.py", "views.py", "tasks.py")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UncommittedMessages)
        for code in add:
            with Session(engine) as session:
                exec(code, {"__name__": "shop", "outbox": outbox, "session": session, "EVENT": EVENT})
    assert [(each.filename, each.lineno) for each in caught] == [("views.py", 1), ("tasks.py", 1)]


def test_a_test_that_rolls_back_around_the_session_is_quiet(engine: Engine):
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            outbox.add(session, EVENT)
        transaction.rollback()


def test_nor_does_a_savepoint_that_was_rolled_back(engine: Engine):
    with Session(engine) as session:
        with suppress(KeyError), session.begin_nested():
            outbox.add(session, EVENT)
            raise KeyError
        session.execute(select(1))


def test_nor_does_a_flush_that_failed(engine: Engine):
    with Session(engine) as session:
        outbox.add(session, EVENT)
        tables.outbox.drop(session.connection())
        with suppress(Exception):
            session.flush()


def test_a_close_of_the_applications_own_is_left_alone(engine: Engine):
    session = Session(engine)
    session.close = own = lambda: None  # type: ignore[method-assign]
    outbox.add(session, EVENT)
    assert session.close is own
    session.rollback()


def test_no_messages_no_warning(engine: Engine):
    with Session(engine) as session:
        assert outbox.add_all(session, []) == []


def test_a_closed_session_is_as_before_and_freed(engine: Engine):
    gc.disable()
    try:
        session = Session(engine)
        outbox.add(session, EVENT)
        session.commit()
        session.close()
        assert "close" not in vars(session)
        freed = weakref.ref(session)
        del session
        assert freed() is None
    finally:
        gc.enable()


def test_a_close_that_was_taken_before_it_is_needed_keeps_the_session(engine: Engine):
    stack = ExitStack()
    session = Session(engine)
    outbox.add(session, EVENT)
    stack.callback(session.close)
    del session
    with pytest.warns(UncommittedMessages):
        stack.close()


def test_messages_that_are_expunged_are_told_at_the_commit(engine: Engine, database_url: str):
    with Session(engine) as session:
        session.execute(insert(effects).values(what="written"))
        outbox.add(session, EVENT)
        session.expunge_all()
        with pytest.warns(UncommittedMessages, match="'OrderConfirmed' was added .* and expunged from its session"):
            session.commit()
        outbox.add(session, EVENT)
        session.commit()
    assert (count(database_url, effects), count(database_url, tables.outbox)) == (1, 1)


@pytest.mark.parametrize("how", ["rollback", "savepoint", "flushed"])
def test_messages_that_are_rolled_back_or_written_are_not(engine: Engine, how: str):
    with Session(engine) as session:
        if how == "savepoint":
            with session.begin_nested() as savepoint:
                outbox.add(session, EVENT)
                savepoint.rollback()
        else:
            outbox.add(session, EVENT)
            (session.rollback if how == "rollback" else session.flush)()
        session.expunge_all()
        session.execute(insert(effects).values(what="written"))
        session.commit()


def test_a_session_of_two_databases_is_told_once(engine: Engine, tmp_path: Path):
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    shop = Table("other_shop", MetaData(), Column("id", Integer, primary_key=True))
    shop.create(other)

    def place(number: int, *, after: bool) -> None:
        with Session(engine, binds={shop: other}) as session:
            if not after:
                session.execute(insert(shop).values(id=number))
            outbox.add(session, EVENT)
            session.flush()
            if after:
                session.execute(insert(shop).values(id=number))
            session.commit()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default", UncommittedMessages)
        for number in range(4):
            place(number, after=number < 2)
    assert len(told) == 1
    assert "in a session that has also begun a transaction in another one" in str(told[0].message)
    other.dispose()
