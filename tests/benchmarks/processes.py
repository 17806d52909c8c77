"""How much faster two processes of one command are than one, with a handler that keeps a core busy."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit import inbox_handler
from tests.benchmarks import backlog
from tests.benchmarks.drains import declare
from tests.benchmarks.place import Case, Place
from tests.benchmarks.raw_publisher import EXCHANGE, RawPublisher
from tests.benchmarks.receipts import Benchmarked, Model, write_receipt
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.support.polling import eventually

STEPS, PATIENCE_SECONDS = 100_000, 240.0
ONE, TWO = "1 process", "2 processes"


@inbox_handler("computing")
async def compute_and_write(session: AsyncSession, event: Benchmarked) -> None:
    """Some milliseconds of Python, and one row."""
    sum(number * number for number in range(STEPS))
    await write_receipt(session, event)


@contextmanager
def processes(place: Place) -> Iterator[Mapping[str, Measure]]:
    """`outboxkit consume --processes 1`, and 2."""
    count = 300 if place.quick else 3_000
    yield {name: partial(_speed, place, number, count) for number, name in enumerate((ONE, TWO), 1)}


def _speed(place: Place, number: int, count: int) -> Figures:
    """The rate of the last nine tenths of a full queue."""
    engine, queue = create_engine(place.database_url), f"benchmark-{secrets.token_hex(4)}"
    Model.metadata.create_all(engine)
    engine.dispose()
    backlog.ask(place.database_url, "TRUNCATE benchmark_receipt, outboxkit_inbox")
    asyncio.run(declare(place.broker_url, queue))
    with RawPublisher(place.broker_url, queue, None) as raw, tempfile.TemporaryDirectory() as folder:
        raw.publish(raw.build(count, 1024), count)
        log = Path(folder) / "log"
        with _consumer(place, log, "--queue", queue, "--processes", str(number)):
            eventually(lambda: _connected(log) == number and _handled(place) >= count // 10, seconds=PATIENCE_SECONDS)
            first, since = _handled(place), time.monotonic()
            eventually(lambda: _handled(place) >= count, seconds=PATIENCE_SECONDS)
            seconds = time.monotonic() - since
        raw.discard(f"{queue}.dead")
    if (done := _handled(place)) != count:
        raise RuntimeError(f"{done} effects of {count} messages")
    return {"rate": (count - first) / seconds}


@contextmanager
def _consumer(place: Place, log: Path, *options: str) -> Iterator[None]:
    settings = {"DATABASE_URL": place.database_url, "BROKER_URL": place.broker_url, "EXCHANGE": EXCHANGE}
    environment = os.environ | {f"OUTBOXKIT_{name}": value for name, value in settings.items()}
    command = (sys.executable, "-m", "outboxkit", "consume", __name__, *options)
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stderr=file, stdout=file)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _connected(log: Path) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return sum(line["event"] == "consumer connected" for line in lines)


def _handled(place: Place) -> int:
    ((count,),) = backlog.ask(place.database_url, "SELECT count(*) FROM benchmark_receipt")
    return int(count)


CASES = (
    Case(
        "processes",
        "a consumer whose handler keeps a core busy, in one process and in two",
        processes,
        (Line(f"{TWO} / {ONE}", (TWO, "rate"), (ONE, "rate"), at_least=1.6, unit="/s"),),
    ),
)
