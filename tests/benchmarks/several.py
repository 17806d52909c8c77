"""How much faster two processes of one command are than one, with a handler that keeps a core busy."""

import asyncio
import json
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aio_pika
import psycopg
from sqlalchemy import func, make_url, select
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import inbox_handler
from outboxkit.brokers.rabbitmq.topology import dead_queue
from tests.benchmarks.consumers import make_tables
from tests.benchmarks.place import Case, Place
from tests.benchmarks.receipts import Benchmarked, write_receipt
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.benchmarks.sharding import consumer_process, handled, publish, wait_until

GATE, STEPS = 4716, 100_000
ONE, TWO = "1 process", "2 processes"


@inbox_handler("computing")
async def compute_and_write(session: AsyncSession, event: Benchmarked) -> None:
    """Some milliseconds of Python, and one row."""
    await session.execute(select(func.pg_advisory_xact_lock_shared(GATE)))
    sum(number * number for number in range(STEPS))
    await write_receipt(session, event)


@contextmanager
def processes(place: Place) -> Iterator[Mapping[str, Measure]]:
    """`outboxkit consume --processes 1`, and 2."""
    count = 300 if place.quick else 3_000
    yield {name: partial(_speed, place, number, count) for number, name in enumerate((ONE, TWO), 1)}


def _speed(place: Place, number: int, count: int) -> Figures:
    make_tables(place.database_url)
    queue, url = f"benchmark-{secrets.token_hex(4)}", make_url(place.database_url).set(drivername="postgresql")
    gate = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
    options = ("--queue", queue, "--processes", str(number))
    with tempfile.TemporaryDirectory() as folder, gate:
        log = Path(folder) / "log"
        with consumer_process(place, log, __name__, *options):
            wait_until(lambda: _connected(log) == number)
            gate.execute("SELECT pg_advisory_lock(%s)", [GATE])
            asyncio.run(publish(place.broker_url, count))
            gate.execute("SELECT pg_advisory_unlock(%s)", [GATE])
            wait_until(lambda: handled(place) >= count // 10)
            first, since = handled(place), time.monotonic()
            wait_until(lambda: handled(place) >= count)
            seconds = time.monotonic() - since
    asyncio.run(_delete(place.broker_url, queue))
    if (done := handled(place)) != count:
        raise RuntimeError(f"{done} effects of {count} messages")
    return {"rate": (count - first) / seconds}


def _connected(log: Path) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return sum(line["event"] == "consumer connected" for line in lines)


async def _delete(url: str, queue: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for name in (queue, dead_queue(queue)):
            await channel.queue_delete(name)


CASES = (
    Case(
        "processes",
        "a consumer whose handler keeps a core busy, in one process and in two",
        processes,
        (Line(f"{TWO} / {ONE}", (TWO, "rate"), (ONE, "rate"), at_least=1.6, unit="/s"),),
    ),
)
