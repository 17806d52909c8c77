"""A relay in front of a queue that is full: back-pressure. Its messages wait, are told, and keep their order."""

import asyncio

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import tables
from outboxkit.brokers.rabbitmq import RabbitPublisher, plan
from outboxkit.relay import RelayPolicy
from tests.integration.relay.recording import add, relay, rows, running
from tests.support.plain_client import QUORUM, PlainClient
from tests.support.polling import eventually_async


async def test_a_full_queue_is_waited_for_while_others_flow(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, "NACK_DELAYS", (0.0, 0.05, 0.1))
    broker.bind("Ordered", arguments=QUORUM | {"x-max-length": 5, "x-overflow": "reject-publish"})
    other = broker.bind("other", queue=f"{broker.queue}-other")
    ids = [add(pg_engine, number, key=f"key-{number % 3}")[0] for number in range(60)]
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    arrived: list[str] = []

    async def waiting() -> list[tuple[int, str | None]]:
        found = await asyncio.to_thread(rows, pg_engine)
        return [(row.attempts, row.last_error) for row in found]

    async def take() -> int:
        arrived.extend(received.properties.message_id for received in await asyncio.to_thread(broker.take_all))
        return len(set(arrived))

    with capture_logs() as log:
        async with running(relay(async_pg_engine, publisher, policy=RelayPolicy(max_attempts=2))):
            told = await eventually_async(waiting, lambda found: any(error for _, error in found))
            assert {attempts for attempts, _ in told} == {0}
            assert "a queue is full" in str(told[0][1])
            flowing = await asyncio.to_thread(add, pg_engine, 1, 2, topic="other")
            await eventually_async(lambda: asyncio.to_thread(broker.depth, other), lambda depth: depth == 2)
            await eventually_async(take, lambda count: count == len(ids))
            assert await eventually_async(waiting, lambda found: not found) == []
    assert [received.properties.message_id for received in broker.take_all(other)] == flowing
    first = list(dict.fromkeys(arrived))
    for key in range(3):
        assert [id_ for id_ in first if id_ in ids[key::3]] == ids[key::3]
    assert not rows(pg_engine, tables.dead_letter)
    assert len([entry for entry in log if entry["log_level"] == "warning"]) < 20
