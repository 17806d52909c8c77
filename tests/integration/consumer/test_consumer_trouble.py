"""The consumer against PostgreSQL and RabbitMQ: deliveries that no handler can have, lost connections, and limits."""

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import inbox_handler
from outboxkit.consumer import Concurrency, ConsumerPolicy
from tests.integration.consumer.running_consumer import (
    Ordered,
    Start,
    bill,
    dead_letters,
    publish,
    starter,
)
from tests.support.plain_client import PlainClient

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
