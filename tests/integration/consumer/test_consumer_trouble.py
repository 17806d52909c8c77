"""The consumer against PostgreSQL and RabbitMQ: deliveries that no handler can have, lost connections, and limits."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, Retry, inbox, inbox_handler, outbox, tables
from outboxkit.consumer import Concurrency, Consumer, ConsumerPolicy
from tests.integration.consumer.running_consumer import (
    Billed,
    Ordered,
    Start,
    bill,
    dead_letters,
    processed,
    publish,
    starter,
    subscriber_of,
)
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

NOW = datetime.now(UTC)


@pytest.fixture
def start(async_pg_engine: AsyncEngine, broker: PlainClient) -> Start:
    return starter(async_pg_engine, broker)


@pytest.mark.parametrize(
    "what",
    [
        (b"{}", {"type": "Ordered"}, "malformed", "no message_id"),
        (b"{}", {"message_id": "m"}, "malformed", "no type"),
        (b"\xff\x00 no json", {"message_id": "m", "type": "Ordered"}, "undecodable", "Ordered"),
        (b'{"numbers":1}', {"message_id": "m", "type": "Ordered"}, "undecodable", "number"),
        (b"{}", {"message_id": "m", "type": "Unheard"}, "no handler", "'Unheard'"),
    ],
    ids=["no id", "no type", "no JSON", "a field is missing", "another type"],
)
async def test_what_cannot_be_handled_is_set_aside_once(
    start: Start, pg_engine: Engine, broker: PlainClient, what: tuple[bytes, dict[str, str], str, str]
):
    body, properties, reason, error = what
    async with start(bill, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        broker.publish(body, topic="Ordered", headers={"deep": {"list": [1, NOW]}}, **properties)
        publish(broker, 7, "next")
        await consumer.reaches(dead=1, processed=1)
    (letter,) = dead_letters(pg_engine)
    assert (letter.reason, letter.attempts, letter.payload) == (reason, 1, body)
    assert error in letter.error
    assert (letter.message_id, letter.type) == (properties.get("message_id"), properties.get("type"))
    assert broker.depth() == 0


async def test_a_message_for_a_handler_that_nobody_has_keeps_its_name(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    async with start(bill, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        publish(broker, 1, "first", headers={"outboxkit-handlers": ["billing.Mailer"]})
        await consumer.reaches(dead=1)
    (letter,) = dead_letters(pg_engine)
    assert (letter.reason, letter.handler) == ("no handler", None)
    assert json.loads(letter.headers)["outboxkit-handlers"] == ["billing.Mailer"]
    assert processed(pg_engine) == []


async def test_a_message_older_than_the_inbox_remembers_is_stale(start: Start, pg_engine: Engine, broker: PlainClient):
    async with start(bill, policy=ConsumerPolicy(retention=timedelta(days=7))) as consumer:
        publish(broker, 1, "old", timestamp=int((NOW - timedelta(days=8)).timestamp()))
        publish(broker, 2, "young", timestamp=int((NOW - timedelta(days=6)).timestamp()))
        await consumer.reaches(stale=1, processed=1)
    assert [(letter.message_id, letter.reason) for letter in dead_letters(pg_engine)] == [("old", "stale")]
    assert processed(pg_engine) == [("Bill", "young")]


async def test_no_more_than_the_concurrency_is_handled_at_once(start: Start, broker: PlainClient):
    now, most, go = 0, 0, asyncio.Event()

    @inbox_handler("Count")
    async def count(session: AsyncSession, event: Ordered) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        if most == 3:
            go.set()
        await go.wait()
        now -= 1

    async with start(count, concurrency=Concurrency(3)) as consumer:
        for number in range(12):
            publish(broker, number, str(number))
        await consumer.reaches(processed=12)
    assert most == 3


async def test_a_lost_database_connection_is_no_failure_of_the_message(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    ran: list[int] = []

    @inbox_handler("LoseConnection")
    async def lose_connection_once(session: AsyncSession, event: Ordered) -> None:
        outbox.add(session, Billed(event.number))
        await session.flush()
        ran.append(event.number)
        if len(ran) == 1:
            pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            with pg_engine.begin() as connection:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

    async with start(lose_connection_once) as consumer:
        publish(broker, 7, "m")
        await consumer.reaches(processed=1)
    assert ran == [7, 7]
    with pg_engine.connect() as connection:
        assert len(connection.execute(select(tables.outbox)).all()) == 1


async def test_a_message_that_always_kills_its_connection_is_contained(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    @inbox_handler("KillConnection")
    async def kill_connection(session: AsyncSession, event: Ordered) -> None:
        await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    async with start(kill_connection, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        publish(broker, 7, "m")
        await consumer.reaches(dead=1)
    (letter,) = dead_letters(pg_engine)
    assert letter.reason == "failed"
    assert "terminating connection" in letter.error


async def test_a_deleted_queue_is_declared_again(start: Start, broker: PlainClient):
    async with start(bill) as consumer:
        publish(broker, 1, "a")
        await consumer.reaches(processed=1)
        broker.delete_queue()
        await eventually_async(lambda: asyncio.to_thread(lambda: broker.has_queue() and broker.consumers()))
        publish(broker, 2, "b")
        await consumer.reaches(processed=2)


async def test_a_drain_handles_what_is_there_and_names_what_waits(async_pg_engine: AsyncEngine, broker: PlainClient):
    @inbox_handler("Odd")
    def odd(session: Session, event: Ordered) -> None:
        if event.number % 2 == 0:
            raise Retry("even", after=3600)

    handlers = [inbox.handler_of(odd)]
    declared = subscriber_of(broker, {"Ordered"})
    await declared.connect()
    for number in range(10):
        publish(broker, number, str(number))
    drained = await Consumer(async_pg_engine, declared, handlers, queue=broker.queue).drain(asyncio.Event())
    assert drained.outcomes == {Outcome.PROCESSED: 5, Outcome.RETRIED: 5}
    assert drained.postponed == 5
    assert broker.depth() == 0
