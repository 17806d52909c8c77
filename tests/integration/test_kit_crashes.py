"""Crashes of whole workers, and a consumer whose acks and connections get lost: each effect happens once."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import ids, inbox, outbox
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.consumer import Consumer
from outboxkit.testing import Chaos, chaos, crash_at, message_of
from tests.integration.kit_handlers import ORDERED, Receipt, Tables, right_book_async
from tests.plain_client import PlainClient
from tests.processes.client import COMMAND, run_to_end

HANDLERS = "tests.integration.kit_right"


def receipts(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(Receipt)).scalar_one()


async def consume(engine: AsyncEngine, seed: int, count: int) -> Chaos:
    broker, handlers = MemoryBroker(), [inbox.handler_of(right_book_async)]
    subscriber = MemorySubscriber(broker, "kit", ["Ordered"])
    messages = [message_of(ORDERED, id=f"message-{number}") for number in range(count)]
    await MemoryPublisher(broker).publish(messages)
    consumer = Consumer(engine, subscriber, handlers, queue="kit")
    disturbed = chaos(consumer, seed=seed)
    await consumer.drain(asyncio.Event())
    return disturbed


async def test_chaos_ends_and_each_effect_happens_once(pg_engine: Engine, async_pg_engine: AsyncEngine):
    Tables.metadata.create_all(pg_engine)
    disturbed = await consume(async_pg_engine, seed=7, count=30)
    assert receipts(pg_engine) == 30
    assert all(disturbed.counts[what] > 3 for what in ("lost acks", "swapped messages", "lost connections"))


def test_chaos_is_drawn_from_its_seed():
    draws = [[Chaos(seed).happens("lost acks", f"m{number}", 0.5) for number in range(40)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("step", [pytest.param("before publish", marks=pytest.mark.night), "after publish"])
def test_a_relay_that_is_killed(step: str, postgresql_url: str, pg_engine: Engine, broker: PlainClient):
    broker.bind("Ordered")
    with Session(pg_engine) as session, session.begin():
        outbox.add(session, ORDERED)
    environment = variables(postgresql_url, broker)
    crash_at(step, ["relay", "--drain"], environment=environment)  # type: ignore[arg-type]
    assert run_to_end([COMMAND, "relay", "--drain"], environment).stdout == "published 1\n"
    assert broker.depth() == (1 if step == "before publish" else 2)


NIGHTLY = [pytest.param(when, marks=pytest.mark.night) for when in ("before handler", "after handler", "before commit")]


@pytest.mark.parametrize("step", [*NIGHTLY, "after commit"])
def test_a_consumer_that_is_killed(step: str, postgresql_url: str, pg_engine: Engine, broker: PlainClient):
    Tables.metadata.create_all(pg_engine)
    environment = variables(postgresql_url, broker)
    command = ["consume", HANDLERS, "--queue", broker.queue, "--drain"]
    assert run_to_end([COMMAND, *command], environment).returncode == 0  # declares the queue
    with Session(pg_engine) as session, session.begin():
        outbox.add(session, ORDERED, message_id=ids.new())
    assert run_to_end([COMMAND, "relay", "--drain"], environment).stdout == "published 1\n"
    crash_at(step, command, environment=environment)  # type: ignore[arg-type]
    assert receipts(pg_engine) == (1 if step == "after commit" else 0)
    assert run_to_end([COMMAND, *command], environment).returncode == 0
    assert receipts(pg_engine) == 1


def test_a_worker_that_does_not_come_there_and_a_step_that_is_none(tmp_path: Path):
    with pytest.raises(AssertionError, match="ended with 2 and did not come to 'before publish'"):
        crash_at("before publish", ["relay", "--nonsense"])
    with pytest.raises(ValueError, match="'before commit'"):
        crash_at("at lunch", ["relay"])  # type: ignore[arg-type]


def variables(url: str, broker: PlainClient) -> dict[str, str]:
    return {
        "OUTBOXKIT_DATABASE_URL": url,
        "OUTBOXKIT_BROKER_URL": broker.url,
        "OUTBOXKIT_EXCHANGE": broker.exchange,
        "OUTBOXKIT_RETRY_DELAYS": "100ms",
    }
