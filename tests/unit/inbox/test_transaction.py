"""The transaction of an inbox row: asked for, and not to be ended by a handler."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, TransactionRequired, inbox, inbox_handler, tables
from tests.unit.shop import OrderConfirmed, count, effects, message

ORDER = message()


def acting(act: Callable[[Session], object]) -> Callable[[Session, OrderConfirmed], None]:
    """A handler that leaves an effect, and then acts."""

    @inbox_handler("Acts")
    def handler(session: Session, event: OrderConfirmed) -> None:
        session.execute(insert(effects).values(what="before"))
        act(session)

    return handler


def handle(engine: Engine, act: Callable[[Session], object]) -> Outcome:
    """Run such a handler in a transaction of its own."""
    with Session(engine) as session, session.begin():
        return inbox.run_once(session, ORDER, acting(act))


ENDS: dict[str, Callable[[Session], object]] = {
    "commit": Session.commit,
    "rollback": Session.rollback,
    "close": Session.close,
    "commit of the connection": lambda session: session.connection().commit(),
    "rollback of the connection": lambda session: session.connection().rollback(),
}


@pytest.mark.filterwarnings("ignore:transaction already deassociated from connection")
@pytest.mark.parametrize("name", ENDS)
def test_a_handler_that_ends_the_transaction_is_refused(engine: Engine, database_url: str, name: str):
    with pytest.raises(TransactionRequired, match="handler 'Acts' ended the transaction"):
        handle(engine, ENDS[name])
    if name == "commit":
        assert count(database_url, tables.inbox) == count(database_url, effects) == 0, "it was prevented"


def test_a_session_that_has_an_engine_for_each_table_is_asked_for_the_one_of_the_inbox(
    engine: Engine, database_url: str
):
    with Session(binds={tables.inbox: engine, effects: engine}) as session, session.begin():
        assert inbox.run_once(session, ORDER, acting(lambda _: None)) is Outcome.PROCESSED
    assert count(database_url, tables.inbox) == count(database_url, effects) == 1


async def test_a_commit_of_an_async_handler_is_prevented(async_engine: AsyncEngine, database_url: str):
    @inbox_handler("Commits")
    async def commits(session: AsyncSession, event: OrderConfirmed) -> None:
        await session.execute(insert(effects).values(what="before"))
        await session.commit()

    with pytest.raises(TransactionRequired, match="'Commits'"):
        async with AsyncSession(async_engine) as session, session.begin():
            await session.run_sync(inbox.run_once, ORDER, commits)
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0


def test_a_commit_in_a_savepoint_of_the_callers_is_prevented_too(engine: Engine, database_url: str):
    with Session(engine) as session, session.begin():
        with pytest.raises(TransactionRequired), session.begin_nested():
            inbox.run_once(session, ORDER, acting(Session.commit))
        session.rollback()
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0


def test_who_catches_the_refusal_has_committed_nothing(engine: Engine, database_url: str):
    def stubborn(session: Session) -> None:
        with pytest.raises(TransactionRequired):
            session.commit()

    with Session(engine) as session, session.begin():
        assert inbox.run_once(session, ORDER, acting(stubborn)) is Outcome.PROCESSED
        assert count(database_url, tables.inbox) == 0
    assert count(database_url, tables.inbox) == count(database_url, effects) == 1


def test_savepoints_are_the_handlers_own(engine: Engine, database_url: str):
    def tries(session: Session) -> None:
        with session.begin_nested():
            session.execute(insert(effects).values(what="kept"))
        savepoint = session.begin_nested()
        session.execute(insert(effects).values(what="undone"))
        savepoint.rollback()

    assert handle(engine, tries) is Outcome.PROCESSED
    assert count(database_url, effects) == 2


def test_a_handler_that_calls_another_one_is_still_guarded(engine: Engine, database_url: str):
    def nested(session: Session) -> None:
        assert inbox.run_once(session, message(id="inner"), acting(lambda _: None)) is Outcome.PROCESSED
        session.commit()

    with pytest.raises(TransactionRequired):
        handle(engine, nested)
    assert count(database_url, tables.inbox) == 0


def test_afterwards_the_session_commits_as_ever(engine: Engine, database_url: str):
    with Session(engine) as session:
        with pytest.raises(ZeroDivisionError), session.begin():
            inbox.run_once(session, ORDER, acting(lambda _: 1 // 0))
        session.begin()
        inbox.run_once(session, ORDER, acting(lambda _: None))
        session.commit()
    assert count(database_url, effects) == 1


def test_an_error_of_the_handlers_is_its_own(engine: Engine):
    def rolls_back_and_fails(session: Session) -> None:
        session.rollback()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle(engine, rolls_back_and_fails)


def test_sql_may_end_a_savepoint(engine: Engine, database_url: str):
    def goes_back(session: Session) -> None:
        session.execute(text("SAVEPOINT here"))
        session.execute(text("ROLLBACK TO here"))

    handle(engine, goes_back)
    assert count(database_url, tables.inbox) == 1
