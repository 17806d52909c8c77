"""The consumer against PostgreSQL and RabbitMQ: deliveries that no handler can have, lost connections, and limits."""

import asyncio
import secrets
import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import inbox_handler, tables
from outboxkit.consumer import Concurrency, ConsumerPolicy
from outboxkit.consumer.transactions import LOST_CONNECTIONS
from tests.integration.consumer.running_consumer import (
    Ordered,
    Start,
    bill,
    dead_letters,
    publish,
    starter,
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


async def test_a_connection_that_the_database_does_not_give_burns_no_attempt(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine
):
    """Two sessions are allowed, and six are wanted: whoever got none waits, however often it is refused."""
    role, password, gate, refusals = f"few_{secrets.token_hex(6)}", secrets.token_hex(6), threading.Event(), 0

    @inbox_handler("Waits")
    def waits(session: Session, event: Ordered) -> None:
        gate.wait(60)

    def refused(context: ExceptionContext) -> None:
        nonlocal refusals
        refusals += 1
        assert "too many connections for role" in str(context.original_exception)

    with pg_engine.begin() as connection:
        options = f"LOGIN PASSWORD '{password}' CONNECTION LIMIT 2 INHERIT IN ROLE {pg_engine.url.username}"
        connection.execute(text(f"CREATE ROLE {role} {options}"))
    few = create_engine(pg_engine.url.set(username=role, password=password), pool_size=6)
    listen(few, "handle_error", refused)
    start = starter(async_pg_engine, broker, thread_engine=few)
    async with start(waits, concurrency=Concurrency(6), policy=ConsumerPolicy(max_attempts=1)) as consumer:
        for number in range(6):
            publish(broker, number, str(number))
        await eventually_async(lambda: asyncio.sleep(0, refusals), lambda count: count > 4 * LOST_CONNECTIONS)
        gate.set()
        await consumer.reaches(processed=6)
    few.dispose()
    with pg_engine.begin() as connection:
        assert list(connection.execute(select(tables.inbox.c.attempts)).scalars()) == [1] * 6
        connection.execute(text(f"DROP ROLE {role}"))


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
