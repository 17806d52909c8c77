"""How much faster four processes with as many shards handle an ordered queue than one process: a handler that waits."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import aio_pika
import psycopg
from sqlalchemy import func, make_url, select
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import ids, inbox_handler
from outboxkit.brokers.rabbitmq.topology import dead_queue
from outboxkit.runtime.sources import Shards
from tests.benchmarks import backlog
from tests.benchmarks.consumers import PATIENCE_SECONDS, make_tables
from tests.benchmarks.place import Case, Place
from tests.benchmarks.raw_publisher import EXCHANGE, TYPE
from tests.benchmarks.receipts import Benchmarked, write_receipt
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.support.plain_client import keyed

GATE, WAIT_SECONDS, KEYS, AT_ONCE = 4715, 0.005, 1000, 500
SPLIT, SINGLY = ("--shards", "4"), ("--concurrency", "1")
ONE, FOUR = "1 process", "4 processes, 4 shards"
ONE_SINGLY, FOUR_SINGLY = (f"{name}, 1 message at once each" for name in (ONE, FOUR))


@inbox_handler("waiting")
async def wait_and_write(session: AsyncSession, event: Benchmarked) -> None:
    """One round trip to the database, 5 ms of waiting for somebody else, and one row."""
    await session.execute(select(func.pg_advisory_xact_lock_shared(GATE)))
    await asyncio.sleep(WAIT_SECONDS)
    await write_receipt(session, event)


@contextmanager
def shards(place: Place) -> Iterator[Mapping[str, Measure]]:
    """`outboxkit consume --ordered`, once in one process and once in four with `--shards 4`."""
    count = 1_000 if place.quick else 6_000
    speed = partial(_speed, place)
    yield {
        ONE: partial(speed, 1, count),
        FOUR: partial(speed, 4, count, *SPLIT),
        ONE_SINGLY: partial(speed, 1, count // 4, *SINGLY),
        FOUR_SINGLY: partial(speed, 4, count // 4, *SPLIT, *SINGLY),
    }


def _speed(place: Place, processes: int, count: int, *options: str) -> Figures:
    make_tables(place.database_url)
    queue, url = f"benchmark-{secrets.token_hex(4)}", make_url(place.database_url).set(drivername="postgresql")
    gate = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running, gate:
        logs = [Path(folder) / str(number) for number in range(processes)]
        for log in logs:
            running.enter_context(consumer_process(place, log, __name__, "--ordered", "--queue", queue, *options))
        wait_until(lambda: _are_ready(logs))
        gate.execute("SELECT pg_advisory_lock(%s)", [GATE])
        asyncio.run(publish(place.broker_url, count))
        gate.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        wait_until(lambda: handled(place) >= count // 10)
        first, since = handled(place), time.monotonic()
        wait_until(lambda: handled(place) >= count)
        seconds = time.monotonic() - since
    asyncio.run(_delete(place.broker_url, Shards(queue, processes)))
    if (done := handled(place)) != count:
        raise RuntimeError(f"{done} effects of {count} messages")
    return {"rate": (count - first) / seconds}


@contextmanager
def consumer_process(place: Place, log: Path, module: str, *options: str) -> Iterator[None]:
    """`outboxkit consume` with the handlers of a module."""
    settings = {"DATABASE_URL": place.database_url, "BROKER_URL": place.broker_url, "EXCHANGE": EXCHANGE}
    settings |= {"LOG_LEVEL": "info"}
    environment = os.environ | {f"OUTBOXKIT_{name}": value for name, value in settings.items()}
    command = (sys.executable, "-m", "outboxkit", "consume", module, *options)
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stderr=file, stdout=file)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _are_ready(logs: Sequence[Path]) -> bool:
    """Whether the processes have shared out all shards and the queue itself, and are connected to these alone."""
    entries = [[json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")] for log in logs]
    connected = [_connected(lines) for lines in entries]
    if len(logs) == 1:
        return bool(connected[0])
    shared = [[set(line["consumed"]) for line in lines if line["event"] == "shards shared"][-1:] for lines in entries]
    return shared == [[queues] for queues in connected] and sum(map(len, connected)) == len(logs) + 1


def _connected(lines: Sequence[Mapping[str, str]]) -> set[str]:
    queues = set[str]()
    for line in lines:
        queues |= {line["queue"]} if line["event"] == "consumer connected" else set()
        queues -= {line["queue"]} if line["event"] == "consumer stopped" else set()
    return queues


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return once it is so."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > until:
            raise RuntimeError("the consumers did not get on")
        time.sleep(0.05)


def handled(place: Place) -> int:
    """The number of effects."""
    ((count,),) = backlog.ask(place.database_url, "SELECT count(*) FROM benchmark_receipt")
    return int(count)


async def publish(url: str, count: int) -> None:
    """Publish so many messages, of a thousand keys."""
    body = json.dumps({"pad": "x" * 1000}).encode()
    async with await aio_pika.connect(url) as connection:
        exchange = await (await connection.channel()).get_exchange(EXCHANGE, ensure=False)
        for first in range(0, count, AT_ONCE):
            await asyncio.gather(
                *(
                    exchange.publish(
                        aio_pika.Message(
                            body,
                            message_id=ids.new(),
                            type=TYPE,
                            headers={**keyed(f"key-{number % KEYS}")},
                            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                        ),
                        TYPE,
                    )
                    for number in range(first, min(first + AT_ONCE, count))
                )
            )


async def _delete(url: str, shards: Shards) -> None:
    """Delete the queues, which would get the messages of the next run, too."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.exchange_delete(shards.exchange)
        await channel.exchange_delete(shards.rest)
        for name in (*shards.consumed, *map(dead_queue, shards.consumed)):
            await channel.queue_delete(name)


CASES = (
    Case(
        "shards",
        "an ordered queue in one process, and in four with as many shards; a handler that waits 5 ms",
        shards,
        tuple(
            Line(f"{four} / {one}", (four, "rate"), (one, "rate"), unit="/s")
            for four, one in ((FOUR, ONE), (FOUR_SINGLY, ONE_SINGLY))
        ),
    ),
)
