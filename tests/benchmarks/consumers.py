"""A consumer in a process of its own, seen from outside, and the queue that it drains."""

import asyncio
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import create_engine

from tests.benchmarks import backlog
from tests.benchmarks.drains import Orders, declare
from tests.benchmarks.place import Place
from tests.benchmarks.raw_publisher import RawPublisher
from tests.benchmarks.readings import Reading, Watch
from tests.benchmarks.receipts import Model

PATIENCE_SECONDS = 120.0
"""How long a consumer may say nothing."""
PIECE, SIZE = 20_000, 1024
INBOXES = {
    "hand-written": "benchmark_inbox",
    **dict.fromkeys(("per message", "batch"), "outboxkit_inbox"),
    **dict.fromkeys(("per message, thread", "per message, def in the loop", "batch, thread"), "outboxkit_inbox"),
}
"""Where the consumers that have a database remember what they have handled."""


def drain(
    place: Place, consumer: str, count: int, *, every: int, portion: int | None = None, trace: bool = False
) -> Watch:
    """Have a consumer drain so many messages of a new queue, and check that each had its effect once.

    Args:
        place: where.
        consumer: its name.
        count: of messages.
        every: after so many of them it is looked at.
        portion: so many are put into the queue when it is empty; all at once where it is None.
        trace: count what the database is sent.
    """
    make_tables(place.database_url)
    with _queue(place.broker_url) as (queue, raw):
        supply = Supply(lambda piece: raw.publish(raw.build(piece, SIZE), piece), count, portion or count)
        supply.keep_up(0)
        orders = Orders(consumer, place.database_url, place.broker_url, queue, count, every, trace)
        readings = _run(orders, supply.keep_up)
        if left := raw.depth():
            raise RuntimeError(f"{consumer}: {left} messages are left in a queue that was drained")
    _check_effects(place.database_url, consumer, count)
    return Watch(count, every, readings)


def drain_again(place: Place, consumer: str, count: int, *, every: int) -> Watch:
    """Have a consumer drain messages that it has handled before, and check that none had a second effect."""
    make_tables(place.database_url)
    with _queue(place.broker_url) as (queue, raw):
        frames = raw.build(count, SIZE)
        orders = Orders(consumer, place.database_url, place.broker_url, queue, count, every)
        for _ in range(2):
            raw.publish(frames, count)
            readings = _run(orders, lambda done: None)
    _check_effects(place.database_url, consumer, count)
    return Watch(count, every, readings)


class Supply:
    """Fills a queue whenever it is empty.

    Args:
        fill: publishes so many messages.
        total: of messages.
        portion: so many at a time.
    """

    def __init__(self, fill: Callable[[int], object], total: int, portion: int) -> None:
        self._fill = fill
        self._total = total
        self._portion = portion
        self._sent = 0

    def keep_up(self, done: int) -> None:
        """Publish the next portion, once the one before it has been consumed."""
        if done < self._sent:
            return
        until = min(self._sent + self._portion, self._total)
        while self._sent < until:
            piece = min(PIECE, until - self._sent)
            self._fill(piece)
            self._sent += piece


def make_tables(url: str) -> None:
    """The tables of the business, and every inbox, empty."""
    engine = create_engine(url)
    Model.metadata.create_all(engine)
    engine.dispose()
    backlog.ask(url, "TRUNCATE benchmark_receipt, benchmark_inbox, outboxkit_inbox")


@contextmanager
def _queue(broker_url: str) -> Iterator[tuple[str, RawPublisher]]:
    name = f"benchmark-{secrets.token_hex(4)}"
    asyncio.run(declare(broker_url, name))
    with RawPublisher(broker_url, name, None) as raw:
        yield name, raw
        raw.discard(f"{name}.dead")


def _run(orders: Orders, on_progress: Callable[[int], None]) -> list[Reading]:
    command, pipe = (sys.executable, "-m", "tests.benchmarks.running_consumer"), subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    readings: list[Reading] = []
    try:
        _tell(process, asdict(orders))
        while (said := _hear(process)) is not None:
            if said == "ready":
                _tell(process, "begin")
            elif isinstance(said, int):
                on_progress(said)
            else:
                readings = [Reading(**one) for one in said]
        ended = process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    if ended or not readings:
        raise RuntimeError(f"{orders.consumer} ended before it was through; what it said is above")
    return readings


def _tell(process: "subprocess.Popen[str]", what: object) -> None:
    if process.stdin is not None:
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()


def _hear(process: "subprocess.Popen[str]") -> Any:
    """What it says next; None where it has ended, or is ended because it says nothing."""
    impatience = threading.Timer(PATIENCE_SECONDS, process.kill)
    impatience.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
    finally:
        impatience.cancel()
    return json.loads(line) if line else None


def _check_effects(url: str, consumer: str, count: int) -> None:
    if (inbox := INBOXES.get(consumer)) is None:
        return
    for table in (inbox, "benchmark_receipt"):
        ((found,),) = backlog.ask(url, f"SELECT count(*) FROM {table}")
        if found != count:
            raise RuntimeError(f"{consumer}: {found} rows in {table} for {count} messages")
