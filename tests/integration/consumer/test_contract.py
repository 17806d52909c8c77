"""What every way of consuming promises: a message alone in its transaction, in a batch, and in the order of its key."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Reject, inbox_handler, outbox, tables
from outboxkit.consumer import ConsumerPolicy
from outboxkit.consumer.transactions import CONFLICTS
from tests.integration.consumer.running_consumer import (
    Billed,
    Ordered,
    Running,
    Start,
    dead_letters,
    processed,
    publish,
    starter,
)
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient

ALWAYS = text("DO $$ BEGIN RAISE EXCEPTION 'as in a deadlock' USING ERRCODE = 'deadlock_detected'; END $$")
KILL = text("SELECT pg_terminate_backend(pg_backend_pid())")
MINE, OTHERS = 7, (1, 2, 3)
"""The number of the message that fails, and those that are published around it."""


class Way:
    """One way of consuming: starts a consumer of a handler, and publishes the messages."""

    def __init__(self, name: str, start: Start, broker: PlainClient) -> None:
        self.name, self.start, self.broker = name, start, broker
        self.runs = Counter[int]()

    def handler(self, act: Callable[[AsyncSession, int], Any]) -> Callable[..., Any]:
        """Adds a message, flushes, and then does this for `MINE`, by the number of its run."""

        @inbox_handler("Work", batch=self.name == "batch")
        async def work(session: AsyncSession, event: Ordered) -> None:
            self.runs[event.number] += 1
            outbox.add(session, Billed(event.number))
            await session.flush()
            if event.number == MINE:
                await act(session, self.runs[MINE])

        return work

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            publish(self.broker, number, f"m{number}", headers={"outboxkit-key": f"k{number}", "tenant": "a"})

    async def reaches(self, consumer: Running, **outcomes: int) -> None:
        """Publish `MINE` between the others, and wait for these outcomes beside theirs."""
        self.publish(OTHERS[0], MINE, *OTHERS[1:])
        await consumer.reaches(processed=outcomes.pop("processed", 0) + len(OTHERS), **outcomes)


@pytest.fixture(params=["single", "batch", "ordered"])
def way(request: pytest.FixtureRequest, async_pg_engine: AsyncEngine, broker: PlainClient) -> Way:
    return Way(request.param, starter(async_pg_engine, broker, ordered=request.param == "ordered"), broker)


def effects(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(tables.outbox)).all())


async def nothing(session: AsyncSession, run: int) -> None:
    """Succeed."""


async def test_a_message_that_comes_again_has_its_effect_once(way: Way, pg_engine: Engine):
    async with way.start(way.handler(nothing)) as consumer:
        await way.reaches(consumer, processed=1)
        way.publish(MINE, MINE)
        await consumer.reaches(processed=4, duplicate=2)
    assert effects(pg_engine) == 4


async def test_a_failed_message_comes_back_and_leaves_nothing_behind(way: Way, pg_engine: Engine):
    async def fail_twice(session: AsyncSession, run: int) -> None:
        if run < 3:
            raise ValueError("not yet")

    async with way.start(way.handler(fail_twice), policy=ConsumerPolicy(delays=DELAYS)) as consumer:
        way.publish(MINE)
        await consumer.reaches(retried=2, processed=1)
    assert (processed(pg_engine), effects(pg_engine)) == ([("Work", f"m{MINE}")], 1)


async def test_after_the_last_attempt_it_is_a_dead_letter_and_others_flow(way: Way, pg_engine: Engine):
    async def fail(session: AsyncSession, run: int) -> None:
        raise ValueError("never\nwith a second line")

    async with way.start(way.handler(fail), policy=ConsumerPolicy(max_attempts=2)) as consumer:
        await way.reaches(consumer, retried=1, dead=1)
    (letter,) = dead_letters(pg_engine)
    assert (letter.side, letter.queue, letter.handler) == ("inbox", way.broker.queue, "Work")
    assert (letter.message_id, letter.type, letter.topic, letter.key) == ("m7", "Ordered", "Ordered", "k7")
    assert (letter.payload, letter.headers) == (b'{"number":7}', b'{"tenant":"a"}')
    assert (letter.reason, letter.error, letter.attempts) == ("failed", "ValueError: never", 2)
    assert (len(processed(pg_engine)), effects(pg_engine), way.broker.depth()) == (len(OTHERS), len(OTHERS), 0)


async def test_a_rejected_message_is_a_dead_letter_at_once(way: Way, pg_engine: Engine):
    async def reject(session: AsyncSession, run: int) -> None:
        raise Reject("no such order")

    async with way.start(way.handler(reject)) as consumer:
        await way.reaches(consumer, dead=1)
    (letter,) = dead_letters(pg_engine)
    assert (letter.reason, letter.error, letter.attempts) == ("rejected", "Reject: no such order", 1)
    assert effects(pg_engine) == len(OTHERS)


async def test_what_is_not_the_event_is_set_aside_and_others_flow(way: Way, pg_engine: Engine):
    async with way.start(way.handler(nothing)) as consumer:
        for body, properties in ((b"{}", {"type": "Ordered"}), (b"\xff", {"message_id": "m", "type": "Ordered"})):
            way.broker.publish(body, topic="Ordered", **properties)
        await way.reaches(consumer, dead=2, processed=1)
    assert sorted(letter.reason for letter in dead_letters(pg_engine)) == ["malformed", "undecodable"]


async def test_a_lost_database_connection_is_no_failure_of_the_message(way: Way, pg_engine: Engine):
    async def lose_connection_once(session: AsyncSession, run: int) -> None:
        if run == 1:
            pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            with pg_engine.begin() as connection:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

    async with way.start(way.handler(lose_connection_once)) as consumer:
        await way.reaches(consumer, processed=1)
    assert (way.runs[MINE], effects(pg_engine)) == (2, 4)


@pytest.mark.parametrize(("statement", "error"), [(KILL, "terminating connection"), (ALWAYS, "as in a deadlock")])
async def test_what_always_loses_its_connection_or_collides_is_the_only_failure(
    way: Way, pg_engine: Engine, statement: Any, error: str
):
    async def execute(session: AsyncSession, run: int) -> None:
        await session.execute(statement)

    async with way.start(way.handler(execute), policy=ConsumerPolicy(max_attempts=1)) as consumer:
        await way.reaches(consumer, dead=1)
    (letter,) = dead_letters(pg_engine)
    assert (letter.message_id, letter.reason, letter.handler) == ("m7", "failed", "Work")
    assert error in letter.error
    assert 1 < way.runs[MINE] <= 3 * (1 + CONFLICTS)
    assert effects(pg_engine) == len(OTHERS)
