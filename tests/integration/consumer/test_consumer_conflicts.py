"""Transactions that collide: the database gives one up, it is run again at once, and no attempt is counted."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Engine, Update, insert, make_url, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from structlog.testing import capture_logs

from outboxkit import inbox_handler, tables
from outboxkit.consumer import ConsumerPolicy
from outboxkit.runtime import process
from tests.integration.consumer.running_consumer import Ordered, Start, dead_letters, publish, starter
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

FIRST, SECOND = 1, 2
LOOK_SOON, LOOK_LATE = text("SET LOCAL deadlock_timeout = '20ms'"), text("SET LOCAL deadlock_timeout = '1min'")
"""Who looks first for a deadlock is the one whose transaction is given up."""
COLLIDE_TWICE = """
CREATE SEQUENCE burials;
CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('burials') < 3 THEN RAISE EXCEPTION 'collided' USING ERRCODE = 'serialization_failure'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER c BEFORE INSERT ON outboxkit_dead_letter FOR EACH ROW EXECUTE FUNCTION collide();
"""


class Stock(DeclarativeBase):
    pass


class Shelf(Stock):
    __tablename__ = "test_shelf"
    id: Mapped[int] = mapped_column(primary_key=True)
    taken: Mapped[int]


@dataclass
class Meeting:
    """Where several wait for each other, the first time that they come there."""

    of: int
    runs: list[int] = field(default_factory=list)
    all_there: asyncio.Event = field(default_factory=asyncio.Event)

    async def come(self, number: int) -> None:
        self.runs.append(number)
        if len(set(self.runs)) == self.of:
            self.all_there.set()
        await self.all_there.wait()


@pytest.fixture
def shelves(pg_engine: Engine) -> Engine:
    Stock.metadata.create_all(pg_engine)
    with pg_engine.begin() as connection:
        connection.execute(insert(Shelf), [{"id": FIRST, "taken": 0}, {"id": SECOND, "taken": 0}])
    return pg_engine


def taken(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(select(Shelf.taken).order_by(Shelf.id)).scalars())


def attempts(engine: Engine) -> Counter[int]:
    with engine.connect() as connection:
        return Counter(connection.execute(select(tables.inbox.c.attempts)).scalars())


def taking(shelf: int) -> Update:
    return update(Shelf).where(Shelf.id == shelf).values(taken=Shelf.taken + 1)


async def take(session: AsyncSession, shelf: int) -> None:
    await session.execute(taking(shelf))


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_two_handlers_that_deadlock_are_both_done_at_their_first_attempt(
    start: Start, shelves: Engine, broker: PlainClient, kind: str
):
    meeting, threads = Meeting(of=2), threading.Barrier(2)

    @inbox_handler("TakeFromBoth")
    async def take_from_both(session: AsyncSession, event: Ordered) -> None:
        await session.execute(LOOK_SOON)
        await take(session, event.number)
        await meeting.come(event.number)
        await take(session, FIRST + SECOND - event.number)

    @inbox_handler("TakeFromBoth")
    def take_in_thread(session: Session, event: Ordered) -> None:
        meeting.runs.append(event.number)
        session.execute(LOOK_SOON)
        session.execute(taking(event.number))
        if len(meeting.runs) <= 2:
            threads.wait(60)
        session.execute(taking(FIRST + SECOND - event.number))

    async with start(take_from_both if kind == "async def" else take_in_thread) as consumer:
        await consumer.takes([FIRST, SECOND], processed=2)
    assert len(meeting.runs) > 2
    assert taken(shelves) == [2, 2]
    assert attempts(shelves) == {1: 2}


async def test_a_batch_that_deadlocks_is_run_again_as_a_whole(start: Start, shelves: Engine, broker: PlainClient):
    runs: list[int] = []
    other_waits = asyncio.Event()

    @inbox_handler("TakeInBatch", batch=True)
    async def take_in_batch(session: AsyncSession, event: Ordered) -> None:
        runs.append(event.number)
        await session.execute(LOOK_SOON)
        if event.number == SECOND:
            await other_waits.wait()
        await take(session, event.number)

    publish_before_there_is_a_consumer(broker, FIRST, SECOND)
    with shelves.connect() as other:
        other.execute(LOOK_LATE)
        other.execute(select(Shelf).where(Shelf.id == SECOND).with_for_update())
        async with start(take_in_batch) as consumer:
            await eventually_async(lambda: asyncio.sleep(0, runs), lambda runs: runs == [FIRST, SECOND])
            locking = asyncio.create_task(
                asyncio.to_thread(other.execute, select(Shelf).where(Shelf.id == FIRST).with_for_update())
            )
            await eventually_async(lambda: asyncio.to_thread(waiting, shelves))
            other_waits.set()
            await locking
            other.commit()
            await consumer.reaches(processed=2)
    assert runs[:4] == [FIRST, SECOND, FIRST, SECOND]
    assert taken(shelves) == [1, 1]
    assert attempts(shelves) == {1: 2}


async def test_a_dead_letter_is_written_in_spite_of_conflicts(
    async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient
):
    with pg_engine.begin() as connection:
        connection.execute(text(COLLIDE_TWICE))

    @inbox_handler("Refuse")
    async def refuse(session: AsyncSession, event: Ordered) -> None:
        raise ValueError("never")

    start = starter(async_pg_engine.execution_options(isolation_level="SERIALIZABLE"), broker)
    async with start(refuse, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        await consumer.takes([1], dead=1)
    assert [letter.message_id for letter in dead_letters(pg_engine)] == ["m1"]


async def test_a_lock_that_the_inbox_row_does_not_get_counts_no_attempt(
    postgresql_url: str, pg_engine: Engine, broker: PlainClient
):
    """As under a lock timeout of the consumer's role: no message is to blame."""

    @inbox_handler("Bill")
    async def bill(session: AsyncSession, event: Ordered) -> None: ...

    url = make_url(postgresql_url).update_query_dict({"options": "-c lock_timeout=50"})
    engine = process.engine(url.render_as_string(hide_password=False), name="test", pool_size=10)
    async with starter(engine, broker)(bill, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        with capture_logs() as said, pg_engine.begin() as locking:
            locking.execute(text("LOCK TABLE outboxkit_inbox IN ACCESS EXCLUSIVE MODE"))
            publish(broker, 1, "m-1")

            async def is_met() -> bool:
                is_away = any(line["event"] == "database is away, waiting" for line in said)
                return is_away or consumer.consumer.outcomes.total() > 0

            await eventually_async(is_met)
        await consumer.reaches(processed=1)
    await engine.dispose()
    assert (attempts(pg_engine), dead_letters(pg_engine)) == ({1: 1}, [])


def publish_before_there_is_a_consumer(broker: PlainClient, *numbers: int) -> None:
    """Into the queue that it will find, so that they are one batch."""
    dead = f"{broker.queue}.dead"
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    broker.bind("Ordered", arguments=arguments)
    for number in numbers:
        publish(broker, number, str(number))


def waiting(engine: Engine) -> int:
    """How many connections wait for another one's row."""
    asked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with engine.connect() as connection:
        return int(connection.execute(asked).scalar_one())
