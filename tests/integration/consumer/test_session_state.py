"""What a handler leaves in its database session: nothing of it reaches the next message's."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import cast

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from outboxkit import Message, Outcome, TransactionRequired, event, inbox, inbox_handler
from outboxkit.database.transaction import HandlerSession
from outboxkit.runtime import process


@event("Stated")
@dataclass(frozen=True)
class Stated:
    number: int


def message(id_: str = "m") -> Message:
    return Message(id=id_, type="Stated", payload=b'{"number":7}')


async def handle_with(engine: AsyncEngine, *statements: str) -> None:
    @inbox_handler("Sets")
    async def sets(session: AsyncSession, event: Stated) -> None:
        for statement in statements:
            await session.execute(text(statement))

    async with AsyncSession(engine) as session, session.begin():
        assert await session.run_sync(inbox.run_once, message(), sets) is Outcome.PROCESSED


async def pid_and(engine: AsyncEngine, asked: str) -> tuple[int, str]:
    async with engine.connect() as connection:
        pid, found = (await connection.execute(text(f"SELECT pg_backend_pid(), {asked}"))).one()
        return pid, found


@pytest.mark.parametrize(
    "statement",
    ["SET LOCAL search_path TO nowhere", "SET LOCAL ROLE pg_monitor", "SET CONSTRAINTS ALL DEFERRED", "SELECT 1"],
)
async def test_a_connection_whose_session_is_as_it_was_is_used_again(postgresql_url: str, statement: str):
    engine = process.engine(postgresql_url, name="test", pool_size=1)
    before = await pid_and(engine, "current_setting('search_path')")
    await handle_with(engine, statement, "SELECT pg_sleep(0.15)")
    assert await pid_and(engine, "current_setting('search_path')") == before
    await engine.dispose()


@pytest.mark.parametrize("end", [AsyncSession.rollback, AsyncSession.close])
async def test_a_handler_that_ends_its_transaction_and_fails_later_leaves_the_connections_next_user_alone(
    postgresql_url: str, end: Callable[[AsyncSession], Awaitable[None]]
):
    engine = process.engine(postgresql_url, name="test", pool_size=1)
    next_user = AsyncExitStack()

    @inbox_handler("Ends")
    async def ends(session: AsyncSession, event: Stated) -> None:
        await end(session)
        plain = await next_user.enter_async_context(engine.connect())
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SELECT 1"))
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        async with AsyncSession(engine, sync_session_class=HandlerSession) as session, session.begin():
            await session.run_sync(inbox.run_once, message(), ends)
    await next_user.aclose()
    assert cast("QueuePool", engine.pool).checkedout() == 0
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar_one() == 1
    await engine.dispose()


def test_a_transaction_that_was_ended_behind_the_session_is_not_taken_for_done(pg_engine: Engine):
    @inbox_handler("Commits")
    def commits(session: Session, event: Stated) -> None:
        driver_connection = session.connection().connection.driver_connection
        assert driver_connection is not None
        driver_connection.commit()

    refused = pytest.raises(TransactionRequired, match="handler 'Commits' ended the transaction")
    with refused, Session(pg_engine) as session, session.begin():
        inbox.run_once(session, message(), commits)
