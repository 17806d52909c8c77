"""A consumer in a process of its own, seen from outside, and the queue that it drains."""

import asyncio
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sqlalchemy import create_engine

from tests.benchmarks import backlog
from tests.benchmarks.drains import Orders, declare
from tests.benchmarks.place import Place
from tests.benchmarks.raw_publisher import RawPublisher
from tests.benchmarks.readings import Reading, Watch
from tests.benchmarks.receipts import Model
from tests.benchmarks.relays import hear, tell

PATIENCE_SECONDS = 120.0
"""How long a consumer may say nothing."""
PIECE, SIZE = 20_000, 1024
INBOXES = {
    "hand-written": "benchmark_inbox",
    **dict.fromkeys(("per message", "without the query", "per message, thread", "batch"), "outboxkit_inbox"),
}
"""Where the consumers that have a database remember what they have handled."""


def drain(
    place: Place, consumer: str, count: int, *, every: int, portion: int | None = None, again: bool = False,
    trace: bool = False,
) -> Watch:  # fmt: skip
    """Have a consumer drain so many messages of a new queue, and check that each had its effect once.

    Args:
        place: where.
        consumer: its name.
        count: of messages.
        every: after so many of them it is looked at.
        portion: so many are put into the queue when it is empty; all at once where it is None.
        again: every portion, of at most `PIECE` messages, is the first one again.
        trace: count what the database is sent.
    """
    engine = create_engine(place.database_url)
    Model.metadata.create_all(engine)
    engine.dispose()
    backlog.ask(place.database_url, "TRUNCATE benchmark_receipt, benchmark_inbox, outboxkit_inbox")
    queue, sent, frames = f"benchmark-{secrets.token_hex(4)}", 0, list[bytes]()
    asyncio.run(declare(place.broker_url, queue))
    with RawPublisher(place.broker_url, queue, None) as raw:

        def keep_up(done: int) -> None:
            """Publish the next portion, once the one before it has been consumed."""
            nonlocal sent, frames
            until = min(sent + (portion or count), count) if done >= sent else sent
            while sent < until:
                piece = min(PIECE, until - sent)
                frames = frames if again and frames else raw.build(piece, SIZE)
                raw.publish(frames, piece)
                sent += piece

        keep_up(0)
        orders = Orders(consumer, place.database_url, place.broker_url, queue, count, every, trace)
        readings = _run(orders, keep_up)
        if left := raw.depth():
            raise RuntimeError(f"{consumer}: {left} messages are left in a queue that was drained")
        raw.discard(f"{queue}.dead")
    _check_effects(place.database_url, consumer, portion if portion and again else count)
    return Watch(count, every, readings)


def _run(orders: Orders, on_progress: Callable[[int], None]) -> list[Reading]:
    command, pipe = (sys.executable, "-m", "tests.benchmarks.running_consumer"), subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    readings: list[Reading] = []
    try:
        tell(process, asdict(orders))
        while (said := _hear(process)) is not None:
            if said == "ready":
                tell(process, "begin")
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


def _hear(process: "subprocess.Popen[str]") -> Any:
    """What it says next; None where it has ended, or is ended because it says nothing."""
    impatience = threading.Timer(PATIENCE_SECONDS, process.kill)
    impatience.start()
    try:
        return hear(process)
    finally:
        impatience.cancel()


def _check_effects(url: str, consumer: str, count: int) -> None:
    if (inbox := INBOXES.get(consumer)) is None:
        return
    for table in (inbox, "benchmark_receipt"):
        ((found,),) = backlog.ask(url, f"SELECT count(*) FROM {table}")
        if found != count:
            raise RuntimeError(f"{consumer}: {found} rows in {table} for {count} messages")
