"""Handlers of a batch that do anything at all to its transaction: their neighbours' effects happen once."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import inbox_handler, outbox, tables
from outboxkit.consumer import Concurrency, ConsumerPolicy
from tests.integration.consumer.running_consumer import Billed, Ordered, publish, starter
from tests.support.night import by_night, chance
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

Act = Callable[[Session], object]
MESSAGES = 40
SQL = (
    *("ROLLBACK AND CHAIN", "COMMIT AND CHAIN") * 9,
    *("ROLLBACK", "COMMIT", "BEGIN", "ROLLBACK; BEGIN", "COMMIT; BEGIN", "PREPARE TRANSACTION 'mine'"),
    *("SAVEPOINT {0}", "ROLLBACK TO SAVEPOINT {0}", "RELEASE SAVEPOINT {0}", "SET CONSTRAINTS ALL IMMEDIATE"),
    *("RESET ALL", "DISCARD PLANS", "SET application_name = 'mine'", "SET LOCAL search_path = pg_catalog"),
    *("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SELECT 1 / 0"),
)


def says(statement: str) -> Act:
    """Savepoints have the handler's own name: another one's of a name in common is a rest (decision 46)."""
    return lambda session: session.connection().exec_driver_sql(statement.format(session.info["name"]))


def driver_of(session: Session) -> Any:
    return session.connection().connection.dbapi_connection


ACTS: tuple[Act, ...] = (
    *map(says, SQL),
    lambda session: session.flush(),
    lambda session: session.commit(),
    lambda session: session.rollback(),
    lambda session: session.close(),
    lambda session: session.begin_nested().rollback(),
    lambda session: session.begin_nested(),
    lambda session: session.connection().invalidate(),
    lambda session: driver_of(session).commit(),
    lambda session: driver_of(session).rollback(),
)


@pytest.fixture(autouse=True)
def _noted(pg_engine: Engine) -> Iterator[None]:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE noted (number integer)"))
    yield
    with pg_engine.begin() as connection:
        connection.execute(text("DROP TABLE noted"))


@pytest.mark.unexpected
@pytest.mark.parametrize("number", range(by_night(20, else_=2)))
@pytest.mark.parametrize("in_loop", [False, True], ids=["in threads", "in the loop"])
async def test_what_others_of_a_batch_do_happens_once(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, in_loop: bool, number: int
):
    """Both what they have executed, and what waits in the session for a flush."""
    drawn = chance("neighbours", number)
    acts = {each: drawn.choices(ACTS, k=drawn.randint(1, 3)) for each in range(MESSAGES) if drawn.random() < 0.3}
    catches = {each for each in acts if drawn.random() < 0.5}
    sound = [each for each in range(MESSAGES) if each not in acts]

    @inbox_handler("Acts", batch=True)
    def handle(session: Session, event: Ordered) -> None:
        if event.number in sound:
            session.execute(text("INSERT INTO noted VALUES (:number)"), {"number": event.number})
            outbox.add(session, Billed(event.number))
        session.info["name"] = f"of_{event.number}"
        for act in acts.get(event.number, ()):
            with suppress(*[Exception] * (event.number in catches)):
                act(session)

    start = starter(async_pg_engine, broker, in_loop=in_loop)
    async with start(handle, concurrency=Concurrency(1, batch=10), policy=ConsumerPolicy(max_attempts=1)) as running:
        for each in range(MESSAGES):
            publish(broker, each, f"m{each}")

        async def ended() -> int:
            return sum(running.consumer.outcomes.values())

        await eventually_async(ended, lambda count: count == MESSAGES)
    with pg_engine.connect() as connection:
        noted = sorted(connection.execute(text("SELECT number FROM noted")).scalars())
        payloads = sorted(connection.execute(select(tables.outbox.c.payload)).scalars())
    assert noted == sound
    assert payloads == sorted(b'{"number":%d}' % each for each in sound)
