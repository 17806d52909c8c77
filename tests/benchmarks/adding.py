"""What the write side costs: `outbox.add_all` beside a plain insert of the same rows, and many writers at once."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from outboxkit import event, outbox, tables
from tests.benchmarks import backlog
from tests.benchmarks.place import Case, Place
from tests.benchmarks.relays import Relays
from tests.benchmarks.rounds import Figures, Line, Measure

EVENTS, WRITERS = 1_000, 16
BUSINESS = "CREATE TABLE IF NOT EXISTS benchmark_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text)"
TRIGGERS = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'outboxkit_outbox'::regclass AND NOT tgisinternal"


@event("BenchmarkPlaced")
@dataclass(frozen=True)
class Placed:
    order_id: int
    total: str


@contextmanager
def add_all(place: Place) -> Iterator[Mapping[str, Measure]]:
    """One transaction of 1 000 rows, to its commit."""
    engine = create_engine(place.database_url)
    times = 3 if place.quick else 20
    try:
        yield {
            "add_all": lambda: _rows_a_second(lambda: _add_all(engine), engine, times),
            "Core insert": lambda: _rows_a_second(lambda: _core(engine), engine, times),
        }
    finally:
        engine.dispose()


@contextmanager
def writers(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Transactions of one business row and one outbox row, with the trigger that wakes relays and without it."""
    backlog.ask(place.database_url, BUSINESS)
    with place.queue("classic", **{"x-max-length": 20_000}):
        yield {
            "with trigger": lambda: _transactions(place, trigger=True),
            "without": lambda: _transactions(place, trigger=False),
        }


def _rows_a_second(prepare: Any, engine: Engine, times: int) -> Figures:
    seconds = 0.0
    for _ in range(times):
        seconds += prepare()
    with engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE outboxkit_outbox")
    return {"rate": EVENTS * times / seconds}


def _add_all(engine: Engine) -> float:
    events = [Placed(number, "12.50") for number in range(EVENTS)]
    started = time.perf_counter()
    with Session(engine) as session:
        outbox.add_all(session, events, key="order-1")
        session.commit()
    return time.perf_counter() - started


def _core(engine: Engine) -> float:
    with Session(engine) as session:
        messages = outbox.add_all(session, [Placed(number, "12.50") for number in range(EVENTS)], key="order-1")
        session.rollback()
    rows = [
        {
            "message_id": message.id,
            "type": message.type,
            "key": message.key,
            "payload": message.payload,
            "headers": b"{}",
            "content_type": message.content_type,
            "created_at": message.created_at,
        }
        for message in messages
    ]
    started = time.perf_counter()
    with engine.begin() as connection:
        connection.execute(insert(tables.outbox), rows)
    return time.perf_counter() - started


def _transactions(place: Place, *, trigger: bool) -> Figures:
    """Transactions a second of all writers. A backlog keeps the relay from falling asleep."""
    seconds = 1.0 if place.quick else 4.0
    backlog.fill(place.database_url, count=200_000, size=100)
    if not backlog.ask(place.database_url, TRIGGERS):
        raise RuntimeError("the outbox has no trigger to compare with")
    backlog.ask(place.database_url, f"ALTER TABLE outboxkit_outbox {'ENABLE' if trigger else 'DISABLE'} TRIGGER USER")
    try:
        with Relays(place.orders()) as running:
            running.begin()
            running.await_confirmed(1)
            done = _write(backlog.plain(place.database_url), seconds)
            running.stop()
    finally:
        backlog.ask(place.database_url, "ALTER TABLE outboxkit_outbox ENABLE TRIGGER USER")
    return {"rate": done / seconds}


def _write(url: str, seconds: float) -> int:
    """How many transactions the writers commit together in so many seconds."""
    command = (sys.executable, "-m", "tests.benchmarks.running_writer", url, str(seconds))
    pipe = subprocess.PIPE
    writing = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(WRITERS)]
    try:
        for process in writing:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RuntimeError("a writer did not get ready; what it said is above")
        for process in writing:
            if process.stdin is not None:
                process.stdin.write("begin\n")
                process.stdin.flush()
        return sum(int(process.communicate()[0]) for process in writing)
    finally:
        for process in writing:
            process.kill()
            process.wait()


CASES = (
    Case(
        "adding",
        "add_all of 1 000 events, and a Core insert of the same rows",
        add_all,
        (Line("add_all / Core insert", ("add_all", "rate"), ("Core insert", "rate"), at_least=0.5, unit="/s"),),
    ),
    Case(
        "writers",
        "16 writers with and without the trigger that wakes relays, beside a busy relay",
        writers,
        (Line("with / without trigger", ("with trigger", "rate"), ("without", "rate"), at_least=0.95, unit="/s"),),
    ),
)
