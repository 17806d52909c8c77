"""What a handler leaves in its database session: nothing of it reaches the next message's."""

from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, TransactionRequired, event, inbox, inbox_handler
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
    "statement", ["SET LOCAL search_path TO nowhere, public", "SET CONSTRAINTS ALL DEFERRED", "SELECT 1"]
)
async def test_a_connection_whose_session_is_as_it_was_is_used_again(postgresql_url: str, statement: str):
    engine = process.engine(postgresql_url, name="test", pool_size=1)
    before = await pid_and(engine, "current_setting('search_path')")
    await handle_with(engine, statement)
    assert await pid_and(engine, "current_setting('search_path')") == before
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
