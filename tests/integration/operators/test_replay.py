"""`outboxkit republish` on real servers: what a queue gets, what its consumer sees, and how it ends and goes on."""

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, select

from outboxkit import Message, tables
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.codec.rows import encode_headers
from outboxkit.schema.partitions import make_ahead
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.operators.kept import keep, row
from tests.processes import COMMAND, run_to_end
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

START = datetime.now(UTC) - timedelta(days=1)
SECOND = timedelta(seconds=1)


def fill(engine: Engine, numbers: range, **more: object) -> None:
    """Three messages that were published at the same moment, every second."""
    keep(engine, *(row(n, START + n // 3 * SECOND, **more) for n in numbers))


@pytest.fixture
def environment(postgresql_url: str, broker: PlainClient) -> dict[str, str]:
    return {"OUTBOXKIT_DATABASE_URL": postgresql_url, "OUTBOXKIT_BROKER_URL": broker.url}


@pytest.fixture
def replay(environment: dict[str, str], broker: PlainClient) -> Any:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_to_end([COMMAND, "republish", "--to-queue", broker.queue, "--yes", *arguments], environment)

    return run


def test_one_queue_gets_them_in_order_and_no_other(replay: Any, pg_engine: Engine, broker: PlainClient):
    fill(pg_engine, range(1, 1501))
    broker.bind("nothing")
    other = broker.bind("#", queue=f"{broker.queue}-other")
    ended = replay("--by", "ada")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[1:] == ["republished 1500 of 1500"]
    with pg_engine.connect() as connection:
        assert connection.execute(select(tables.audit.c.operator)).scalar_one().startswith("ada ")
    assert [one.properties.message_id for one in broker.take_all()] == [f"m-{n}" for n in range(1, 1501)]
    assert broker.take_all(queue=other) == []


async def test_a_consumer_sees_the_same_message(replay: Any, pg_engine: Engine, broker: PlainClient):
    more = {"key": "order-1", "topic": "orders.eu", "headers": encode_headers({"tenant": "a"})}
    more |= {"correlation_id": "story", "causation_id": "cause", "content_encoding": "gzip", "version": 2}
    fill(pg_engine, range(1, 2), **more, created_at=START.replace(microsecond=0))
    subscriber = RabbitSubscriber(broker.url, broker.queue, exchange=broker.exchange, topics=["OrderConfirmed"])
    await subscriber.connect()
    assert replay().returncode == 0
    delivery = await subscriber.receive()
    assert delivery is not None
    await delivery.ack()
    await subscriber.close()
    assert delivery.message == Message(
        id="m-1",
        type="OrderConfirmed",
        payload=b"{}",
        key="order-1",
        topic="orders.eu",
        headers={"tenant": "a"},
        correlation_id="story",
        causation_id="cause",
        created_at=START.replace(microsecond=0),
        content_encoding="gzip",
        version=2,
    )


def test_a_queue_that_is_not_there_is_one_line(replay: Any, pg_engine: Engine, broker: PlainClient):
    fill(pg_engine, range(1, 4))
    ended = replay()
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [f"outboxkit: not published: message m-1: there is no queue '{broker.queue}'"]
    assert ended.stdout.splitlines()[1:] == ["republished 0 of 3"]


def slow_replay(environment: dict[str, str], broker: PlainClient, log: Path, *, until: int) -> WorkerProcess:
    """A replay of a hundred messages a second that runs, once it has published so many."""
    broker.bind("nothing")
    command = [COMMAND, "republish", "--to-queue", broker.queue, "--yes", "--rate", "100"]
    process = WorkerProcess(command, environment, log)
    eventually(broker.depth, lambda depth: depth >= until)
    return process


def test_it_goes_on_where_it_was_stopped(
    replay: Any, environment: dict[str, str], pg_engine: Engine, broker: PlainClient, tmp_path: Path
):
    fill(pg_engine, range(1, 2001))
    log = tmp_path / "replay.log"
    process = slow_replay(environment, broker, log, until=200)
    process.interrupt()
    assert process.wait() == 3
    said = re.search(r"republished (\d+) of 2000\nto go on: (--since) (\S+)", log.read_text())
    assert said is not None, log.read_text()
    assert 200 <= int(said[1]) < 2000
    assert replay(said[2], said[3]).returncode == 0
    seen = [one.properties.message_id for one in broker.take_all()]
    assert list(dict.fromkeys(seen)) == [f"m-{n}" for n in range(1, 2001)]
    assert len(seen) - 2000 <= 3, "no more twice than what was published at one moment"


def test_retention_that_overtakes_it_is_said(
    environment: dict[str, str], pg_engine: Engine, broker: PlainClient, tmp_path: Path
):
    fill(pg_engine, range(1, 1001))
    log = tmp_path / "replay.log"
    process = slow_replay(environment, broker, log, until=100)
    with pg_engine.begin() as connection:
        connection.execute(delete(tables.published).where(tables.published.c.position < 901))
    assert process.wait() == 3
    said = re.search(
        r"republished (\d+) of 1000\noutboxkit: (\d+) messages of the selection were deleted", log.read_text()
    )
    assert said is not None, log.read_text()
    assert int(said[1]) + int(said[2]) == 1000


async def test_partitions_are_read_as_one_table(
    replay: Any, pg_engine: Engine, async_pg_engine: Any, broker: PlainClient
):
    fill(pg_engine, range(1, 4))
    async with async_pg_engine.connect() as connection:
        await make_ahead(connection, now=START)
    fill(pg_engine, range(4, 7), published_at=START + timedelta(days=1, seconds=-60))
    fill(pg_engine, range(7, 10), published_at=START - timedelta(days=3))
    broker.bind("nothing")
    assert replay().returncode == 0
    seen = [one.properties.message_id for one in broker.take_all()]
    assert seen == [f"m-{n}" for n in (7, 8, 9, 1, 2, 3, 4, 5, 6)]
